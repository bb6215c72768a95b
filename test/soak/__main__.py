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
from contextlib import ExitStack
from pathlib import Path

from harness import PLAIN, READER, glance_flags, start
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sglang.glance.cli.signals import unwind_on_signals
from soak.check import GROWTH_MIB, PlainAnswers, Tally, grown_mib, one_wave

POOL_TOKENS = 1280
# Admit by a guess of 8 tokens an answer, so that the pool runs short and requests are taken back.
SMALL = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}


def soak(options: argparse.Namespace, console: Console) -> Tally:
    tally = Tally(options.seed)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="glance-soak-") as folder, ExitStack() as stack:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        flags = glance_flags(tokens=POOL_TOKENS)
        glance = stack.enter_context(start(READER, logs / "glance.log", *flags, env=SMALL))
        plain = stack.enter_context(start(READER, logs / "plain.log", *PLAIN))
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
