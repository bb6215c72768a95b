"""``glance law``: does the target's entropy say how far a draft gets?

Asks a GLANCE server, started here, a JSONL of questions with a `task` each, and fits the entropy
law to its rounds, per task and pooled; or fits rounds that were recorded earlier (--rows).

Exit code: 0 the pooled law was fitted, 1 it was not, 2 the command could not run.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from sglang.glance.arms import NAMES, ROUND_LOG_ENV, arms
from sglang.glance.assets import PICTURES
from sglang.glance.audit_client import Endpoint, Question, load_questions
from sglang.glance.figures import GLANCE, POOLED
from sglang.glance.files import check_file, whole, write_json
from sglang.glance.law.fit import Law, fit_law
from sglang.glance.law.rows import Asked, LawRow, by_task, join, load_rows, read_log, save_rows
from sglang.glance.law.show import plot, show
from sglang.glance.machine import Provenance, describe
from sglang.glance.options import Parser, add_models, settle_models
from sglang.glance.progress import bar, waiting
from sglang.glance.server import log_folder, starting, wait_until_up
from sglang.glance.terminal import messages, output

PLOTS = (".png", ".svg", ".pdf")


class Report(msgspec.Struct, frozen=True):
    """What ``--json`` writes. ``source``: the file that the rounds or the questions came from, with
    its SHA-256. ``laws``: by task, and ``all``."""

    provenance: Provenance
    source: str
    source_sha256: str
    dtype: str | None
    laws: dict[str, Law]


def laws_of(rows: Sequence[LawRow]) -> dict[str, Law]:
    """Per task, in order of appearance, and pooled."""
    tasks = by_task(rows)
    if POOLED in tasks:
        raise ValueError(
            f"a task is named {POOLED!r}, which is what all rounds together are called"
        )
    return {**{task: fit_law(own) for task, own in tasks.items()}, POOLED: fit_law(rows)}


def collect(
    endpoint: Endpoint,
    questions: Sequence[Question],
    options: argparse.Namespace,
    console: Console,
) -> dict[str, Asked]:
    """Every question's greedy answer, ``--parallel`` at a time, by request id."""
    asked = {}
    with (
        bar(console, "asking", len(questions)) as advance,
        ThreadPoolExecutor(options.parallel) as pool,
    ):
        replies = pool.map(lambda each: endpoint.ask(each, options.max_tokens), questions)
        for question, reply in zip(questions, replies, strict=True):
            asked[reply.rid] = Asked(question.task, len(reply.ids), reply.rounds)
            advance()
    return asked


def record(
    questions: Sequence[Question], options: argparse.Namespace, console: Console
) -> list[LawRow]:
    """The rounds of a server that is started here and answers ``questions``."""
    flags = ["--dtype", options.dtype, *arms(options.head_path)[GLANCE]]
    with log_folder("law") as folder:
        log, rounds = folder / "server.log", folder / "rounds.jsonl"
        env = {ROUND_LOG_ENV: str(rounds)}
        with starting(options.model_path, log, *flags, env=env) as server:
            with waiting(console, f"starting a server: {NAMES[GLANCE]}"):
                wait_until_up(server)
            asked = collect(Endpoint(server.url), questions, options, console)
        return join(read_log(rounds), asked)


def run(options: argparse.Namespace, console: Console) -> Report:
    source = options.rows or options.requests
    if options.rows:
        rows = load_rows(options.rows)
        provenance = describe([])
    else:
        questions = load_questions(options.requests)
        untold = sum(not question.task for question in questions)
        if untold:
            raise ValueError(
                f"{options.requests}: {untold} of {len(questions)} requests name no `task`; "
                "expected one each"
            )
        provenance = describe([options.model_path, options.head_path])
        rows = record(questions, options, console)
        if options.save:
            with whole(options.save) as part:
                save_rows(part, rows)
    return Report(
        provenance=provenance,
        source=source.name,
        source_sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        dtype=None if options.rows else options.dtype,
        laws=laws_of(rows),
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser("law", __doc__)
    parser.add_argument("--rows", type=Path, metavar="FILE", help="fit these recorded rounds")
    add_models(parser)
    parser.add_argument("--dtype", default="float32", help="of the server")
    parser.add_argument(
        "--requests",
        type=Path,
        default=PICTURES / "prompts.jsonl",
        help="JSONL with `image`, `prompt` and `task`, one a line; default: the shipped ones",
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
        parser.error("--plot needs the package matplotlib: pip install matplotlib")
    if options.plot and options.plot.suffix not in PLOTS:
        parser.error(f"--plot: got {options.plot}, expected a name that ends in {', '.join(PLOTS)}")
    if not options.rows:
        settle_models(parser, options)
    for flag in ("save", "json", "plot"):
        check_file(f"--{flag}", getattr(options, flag))
    report = run(options, messages())
    show(report.laws, output())
    if options.json:
        write_json(options.json, report)
    if options.plot:
        with whole(options.plot) as part:
            plot(report.laws, part)
    return int(report.laws[POOLED].problem is not None)
