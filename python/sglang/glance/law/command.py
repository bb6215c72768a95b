"""Rounds, recorded here or earlier, and the laws fitted to them."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from rich.console import Console
from sglang.glance.cli.files import whole
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.law.fit import Law, fit_law
from sglang.glance.law.rows import Asked, LawRow, by_task, join, load_rows, read_log, save_rows
from sglang.glance.measure.figures import POOLED
from sglang.glance.measure.provenance import Provenance, describe
from sglang.glance.prompts.rows import Prompt, load_prompts, rows_file
from sglang.glance.serving.arms import GLANCE, NAMES, ROUND_LOG_ENV, arms
from sglang.glance.serving.client import Endpoint
from sglang.glance.serving.server import log_folder, starting, wait_until_up


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
            asked[reply.rid] = Asked(question.group, len(reply.ids), reply.rounds)
            advance()
    return asked


def record(
    questions: Sequence[Prompt], options: argparse.Namespace, console: Console
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
    source = options.rows or rows_file(options.requests)
    if options.rows:
        rows = load_rows(options.rows)
        provenance = describe([])
    else:
        questions = load_prompts(options.requests)
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
