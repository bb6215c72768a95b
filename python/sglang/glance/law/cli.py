"""Does the target's entropy say how far a draft gets?

Asks a GLANCE server, started here, a JSONL of questions with a `task` each, and fits the entropy
law to its rounds, per task and pooled; or fits rounds that were recorded earlier (--rows).

Exit code: 0 the pooled law was fitted, 1 it was not, 2 the command could not run.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from sglang.glance.cli.files import check_file, whole, write_json
from sglang.glance.cli.options import DTYPES, Parser, add_models, settle_models
from sglang.glance.cli.terminal import messages, output
from sglang.glance.measure.figures import POOLED
from sglang.glance.shipped import PICTURES

PLOTS = (".png", ".svg", ".pdf")


def _parser() -> argparse.ArgumentParser:
    parser = Parser("law", __doc__)
    parser.add_argument("--rows", type=Path, metavar="FILE", help="fit these recorded rounds")
    add_models(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the server")
    parser.add_argument(
        "--requests",
        type=Path,
        default=PICTURES / "prompts.jsonl",
        help="JSONL file, or folder with prompts.jsonl (docs/requests.md); default: shipped",
    )
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--parallel", type=int, default=1, help="requests at a time")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the rounds, for --rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the fits there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw deciles and curves")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.rows and options.save:
        parser.error("--save keeps rounds that are recorded here; --rows are kept already")
    if options.parallel < 1 or options.max_tokens < 2:
        parser.error("--parallel must be at least 1, --max-tokens at least 2")
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs the package matplotlib: pip install 'sglang-glance[law]'")
    if options.plot and options.plot.suffix not in PLOTS:
        parser.error(f"--plot: got {options.plot}, expected a name that ends in {', '.join(PLOTS)}")
    if not options.rows:
        settle_models(parser, options)
    for flag in ("save", "json", "plot"):
        check_file(f"--{flag}", getattr(options, flag))
    # After the parser, so that --help does not import torch and scipy.
    from sglang.glance.law.command import run
    from sglang.glance.law.show import plot, show

    report = run(options, messages())
    show(report.laws, output())
    if options.json:
        write_json(options.json, report)
    if options.plot:
        with whole(options.plot) as part:
            plot(report.laws, part)
    return int(report.laws[POOLED].problem is not None)
