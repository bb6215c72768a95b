"""Everything that only an NVIDIA GPU can show, as one command: ``make test-gpu``.

Real servers with the shipped model answer the same requests with GLANCE and without. In float32
the tokens must be identical; in bfloat16 an answer may depart where plain decoding's two best
tokens are nearly tied, and the margin is kept. Each row's verdict is in the JSON file as soon as
it is known. Exit code 0: no row failed; 1: one did; 2: the checks could not run.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test" / "engine")]

from gpu import rows as matrix  # noqa: E402  the path is set above
from gpu.fleet import Fleet, start_in  # noqa: E402
from gpu.runner import Outcome, Report, Runner  # noqa: E402
from sglang.glance.cli.signals import unwind_on_signals  # noqa: E402
from sglang.glance.measure.provenance import describe  # noqa: E402
from sglang.glance.serving.flags import this_device  # noqa: E402
from sglang.glance.shipped import HEAD, PICTURES, READER  # noqa: E402


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make test-gpu", description=__doc__)
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "test-gpu.json")
    parser.add_argument("--minutes", type=float, default=8, help="what is left then is left out")
    parser.add_argument("--rows", metavar="REGEX", type=re.compile, help="only rows it matches")
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args(argv)


def chosen(options: argparse.Namespace) -> list[matrix.Row]:
    rows = matrix.rows_for(options.device)
    return [row for row in rows if options.rows is None or options.rows.search(row.name)]


def tell(outcome: Outcome) -> None:
    said = f"{outcome.verdict:8s} {outcome.seconds:6.1f} s  {outcome.row}"
    print(f"{said}: {outcome.reason}" if outcome.reason else said, flush=True)


def run(options: argparse.Namespace, rows: list[matrix.Row]) -> Report:
    options.json.parent.mkdir(parents=True, exist_ok=True)
    logs = options.json.with_suffix(".logs")
    logs.mkdir(exist_ok=True)
    report = Report(describe([READER, HEAD, PICTURES]), options.device, options.minutes, len(rows))
    reasons = {row.name: matrix.left_out(row, options.device) for row in rows}
    tried = [row for row in rows if reasons[row.name] is None]
    fleet = Fleet(tried, start_in(logs, options.device), matrix.AHEAD[options.device])
    runner = Runner(rows, fleet, report, options.json, lambda row: reasons[row.name])
    return runner.run(tell)


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    rows = chosen(options)
    if options.list:
        print("\n".join(f"{row.budget_s:4d} s  {row.name}" for row in rows))
        return 0
    if not rows:
        print(f"--rows {options.rows.pattern!r} matches none: see --list", file=sys.stderr)
        return 2
    if options.device == "cuda" and this_device() != "cuda":
        print(
            "no CUDA device: these checks need one (--device cpu tries the script)", file=sys.stderr
        )
        return 2
    with unwind_on_signals():
        report = run(options, rows)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.verdicts.items())
    print(f"{counts} in {report.seconds:.0f} s: {options.json}")
    return 1 if report.verdicts.get("failed") else 0


if __name__ == "__main__":
    raise SystemExit(main())
