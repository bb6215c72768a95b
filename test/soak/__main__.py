"""``make soak MINUTES=5 SEED=1``: mixed random traffic on a small pool, checked against plain.

Traffic comes in waves; wave k of seed s is the first wave of seed s + k, so a failing wave replays
with the seed that is printed. After each wave: greedy ids equal plain decoding's, every slot is
back, the server lives. At the end: its memory has stayed flat.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness import READER, assert_no_slot_lost, glance_flags, start
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sglang.glance.server import Server, unwind_on_signals
from soak.traffic import Outcome, differences, send, wave

POOL_TOKENS = 1280
WAVE, CLIENTS = 24, 12
# Admit by a guess of 8 tokens an answer, so that the pool runs short and requests are taken back.
SMALL = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
# Arenas and caches fill during the first waves; what comes after may not grow by more than this.
SETTLED_AFTER, GROWTH_MIB = 5, 64


@dataclass
class Tally:
    """What the soak has seen. ``rss_mib``: after each wave."""

    seed: int
    waves: int = 0
    requests: int = 0
    compared_requests: int = 0
    compared_tokens: int = 0
    broken_off: int = 0
    retractions: int = 0
    divergences: int = 0
    slots_lost: int = 0
    kinds: Counter = field(default_factory=Counter)
    rss_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, got: Outcome, plain: Outcome, seed: int) -> None:
        self.requests += 1
        self.kinds[f"{got.ask.kind}, {got.ask.end}"] += 1
        self.retractions += got.retractions
        self.broken_off += got.ended in ("abort", "hung up")
        wrong = differences(got, plain)
        if got.ask.greedy:
            self.compared_requests += 1
            self.compared_tokens += sum(map(len, got.ids))
            self.divergences += any(line.startswith("ids") for line in wrong)
        self.failures += [
            f"SEED={seed}: {got.ask.kind}, {got.ask.end}, {got.ask.sampling}: {x}" for x in wrong
        ]


def rss_mib(server: Server) -> float:
    """Resident memory of the server and its children."""
    leader = psutil.Process(server.process.pid)
    own = [leader, *leader.children(recursive=True)]
    return sum(process.memory_info().rss for process in own) / 2**20


def grown_mib(rss: list[float]) -> float:
    """Growth from the settled start to the end, each the median of three waves or more."""
    settled = rss[SETTLED_AFTER:]
    if len(settled) < 6:
        return 0.0
    part = max(3, len(settled) // 4)
    first, last = sorted(settled[:part]), sorted(settled[-part:])
    return last[part // 2] - first[part // 2]


class PlainAnswers:
    """Plain decoding's whole answers; no greedy request is asked twice."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, Outcome] = {}

    def __call__(self, outcome: Outcome) -> Outcome:
        ask = outcome.ask
        if not ask.greedy:
            return Outcome(ask)
        own = {k: v for k, v in ask.request.get("extra", {}).items() if k != "rid"}
        key = json.dumps([ask.request["text"], ask.request.get("images"), ask.sampling, own])
        if key not in self.known:
            self.known[key] = send(self.server, ask, replay=True)
        return self.known[key]


def one_wave(glance: Server, plain: Callable, seed: int, tally: Tally) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = list(pool.map(lambda ask: send(glance, ask), wave(seed, WAVE)))
        for got, expected in zip(outcomes, pool.map(plain, outcomes), strict=True):
            tally.add(got, expected, seed)
    tally.waves += 1
    try:
        assert_no_slot_lost(glance)
    except (AssertionError, RuntimeError) as error:
        tally.slots_lost += 1
        tally.failures.append(f"SEED={seed}: {str(error)[:2000]}")
    tally.rss_mib.append(round(rss_mib(glance), 1) if glance.process.poll() is None else 0.0)


def soak(options: argparse.Namespace, console: Console) -> Tally:
    tally = Tally(options.seed)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="glance-soak-") as folder, ExitStack() as stack:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        flags = glance_flags(tokens=POOL_TOKENS)
        glance = stack.enter_context(start(READER, logs / "glance.log", *flags, env=SMALL))
        plain = stack.enter_context(start(READER, logs / "plain.log", "--dtype", "float32"))
        answers = PlainAnswers(plain)
        seconds, started = 60 * options.minutes, time.monotonic()
        bar = stack.enter_context(Progress(*columns, console=console))
        task = bar.add_task("soak", total=seconds)
        while not tally.failures and (tally.waves == 0 or time.monotonic() - started < seconds):
            one_wave(glance, answers, options.seed + tally.waves, tally)
            said = f"wave {tally.waves}: {tally.requests} requests, {tally.rss_mib[-1]:.0f} MiB"
            bar.update(task, completed=time.monotonic() - started, description=said)
            if not console.is_terminal and tally.waves % 10 == 1:
                console.print(said)
    grown = grown_mib(tally.rss_mib)
    if grown > GROWTH_MIB:
        tally.failures.append(f"memory grew by {grown:.0f} MiB, {GROWTH_MIB} allowed")
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--logs", type=Path, help="folder to keep the servers' logs in")
    options = parser.parse_args(argv)
    console = Console(stderr=True)
    with unwind_on_signals():
        tally = soak(options, console)
    report = {**vars(tally), "grown_mib": round(grown_mib(tally.rss_mib), 1)}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for line in tally.failures:
        print(line)
    print(json.dumps({k: v for k, v in report.items() if k not in ("rss_mib", "failures")}))
    if tally.failures:
        last = options.seed + tally.waves - 1
        print(f"FAILED in its last wave, which replays: make soak MINUTES=0 SEED={last}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
