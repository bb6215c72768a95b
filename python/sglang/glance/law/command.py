"""``python -m sglang.glance law``: does the target's entropy say how far a draft gets?

Asks a GLANCE server, started here, questions grouped by their `task`, and fits the entropy law
to its rounds, per task and pooled; or fits rounds that were recorded earlier (--rows).

Exit code: 0 the pooled law was fitted, 1 it was not, 2 the command could not run.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sglang.glance.assets import HEAD, PICTURES, READER
from sglang.glance.audit_client import FAILURES, Endpoint
from sglang.glance.bench import ROUND_LOG_ENV, arms
from sglang.glance.figures import GLANCE, POOLED
from sglang.glance.files import write_json
from sglang.glance.law.fit import Law, fit_law
from sglang.glance.law.rows import Asked, LawRow, by_task, join, load_rows, read_log, save_rows
from sglang.glance.law.show import plot, show
from sglang.glance.machine import Provenance, describe
from sglang.glance.prompts import Prompt, load_prompts, rows_file
from sglang.glance.server import CPU_FLAGS, serve, unwind_on_signals


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
    questions: Sequence[Prompt],
    options: argparse.Namespace,
    progress: Progress,
) -> dict[str, Asked]:
    """Every question's greedy answer, ``--parallel`` at a time, by request id."""
    bar = progress.add_task("asking", total=len(questions))
    asked = {}
    with ThreadPoolExecutor(options.parallel) as pool:
        replies = pool.map(lambda each: endpoint.ask(each, options.max_tokens), questions)
        for question, reply in zip(questions, replies, strict=True):
            asked[reply.rid] = Asked(question.group, len(reply.ids), reply.rounds)
            progress.advance(bar)
    return asked


def record(
    questions: Sequence[Prompt], options: argparse.Namespace, console: Console
) -> list[LawRow]:
    """The rounds of a server that is started here and answers ``questions``."""
    import torch

    device = () if torch.cuda.is_available() else CPU_FLAGS
    flags = ["--dtype", options.dtype, *arms(options.head_path)[GLANCE]]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        tempfile.TemporaryDirectory(prefix="glance-law-") as folder,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        log, rounds = Path(folder) / "server.log", Path(folder) / "rounds.jsonl"
        env = {ROUND_LOG_ENV: str(rounds)}
        with serve(options.model_path, log, *flags, env=env, device_flags=device) as server:
            asked = collect(Endpoint(server.url), questions, options, progress)
        return join(read_log(rounds), asked)


def run(options: argparse.Namespace, console: Console) -> Report:
    source = options.rows or rows_file(options.requests)
    if options.rows:
        rows = load_rows(options.rows)
        provenance = describe([])
    else:
        questions = load_prompts(options.requests)
        provenance = describe([options.model_path, options.head_path])
        rows = record(questions, options, console)
        if options.save:
            save_rows(options.save, rows)
    return Report(
        provenance=provenance,
        source=source.name,
        source_sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        dtype=None if options.rows else options.dtype,
        laws=laws_of(rows),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang.glance law",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="fit these recorded rounds")
    parser.add_argument("--model-path", type=Path, default=READER)
    parser.add_argument("--head-path", type=Path, default=HEAD)
    parser.add_argument("--dtype", default="float32", help="of the server")
    parser.add_argument(
        "--requests",
        type=Path,
        default=PICTURES,
        help="JSONL file, or folder with prompts.jsonl (docs/requests.md); default: the shipped "
        "questions",
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
    for path in (options.save, options.json, options.plot):
        if path and not path.parent.is_dir():
            parser.error(f"{path}: no folder {path.parent}")
    try:
        with unwind_on_signals():
            report = run(options, Console(stderr=True))
    except FAILURES as error:
        print(f"law: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show(report.laws, Console(width=None if sys.stdout.isatty() else 120))
    if options.json:
        write_json(options.json, report)
    if options.plot:
        plot(report.laws, options.plot)
    return int(report.laws[POOLED].problem is not None)
