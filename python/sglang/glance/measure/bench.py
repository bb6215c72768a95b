"""``glance bench``: GLANCE against plain decoding and its baselines, one run.

Every arm is a real server; a dtype's servers run side by side and idle ones sleep. Each question
goes to the arms one after the other, in an order that rotates, so that a slow moment of the machine
falls on all of them. Caches are emptied before every repeat: each answer pays for its prefill.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from sglang.glance.cli.files import check_folder, write_json
from sglang.glance.cli.options import Parser, add_models, is_shipped, settle_models
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.cli.terminal import messages, output
from sglang.glance.measure.figures import PHASES, ROWS, Row, Run, keeping, load
from sglang.glance.measure.plots import draw
from sglang.glance.measure.provenance import describe
from sglang.glance.measure.report import show
from sglang.glance.measure.served_card import write_served
from sglang.glance.measure.summary import summarise
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import files, load_prompts
from sglang.glance.serving.arms import COLD, PLAIN, ROUND_LOG_ENV, arms
from sglang.glance.serving.server import (
    START_TIMEOUT_S,
    Answer,
    Server,
    log_folder,
    starting,
    wait_until_up,
)
from sglang.glance.shipped import EAGLE3_HEAD, PICTURES


@dataclass
class Arm:
    """A running server and the part of its round log not read yet."""

    name: str
    server: Server
    round_log: Path
    offset: int = field(default=0)

    def new_rounds(self) -> list[dict[str, float]]:
        """``laps_ms`` of the rounds logged since the last call."""
        if not self.round_log.exists():
            return []
        with self.round_log.open("rb") as file:
            file.seek(self.offset)
            lines = file.readlines()
            self.offset = file.tell()
        return [msgspec.json.decode(line)["laps_ms"] for line in lines]


@contextlib.contextmanager
def running(
    arm_flags: dict[str, list[str]], model: Path, dtype: str, logs: Path
) -> Iterator[list[Arm]]:
    """All arms' servers, started side by side, up and warm."""
    with contextlib.ExitStack() as stack:
        up = []
        for name, flags in arm_flags.items():
            round_log = logs / f"{dtype}-{name}.rounds.jsonl"
            server = stack.enter_context(
                starting(
                    model,
                    logs / f"{dtype}-{name}.log",
                    "--dtype",
                    dtype,
                    *flags,
                    env={**COLD, ROUND_LOG_ENV: str(round_log)},
                )
            )
            up.append(Arm(name, server, round_log))
        for arm in up:
            wait_until_up(arm.server, START_TIMEOUT_S * len(up))
        yield up


def measure(
    up: Sequence[Arm],
    prompts: Sequence[dict],
    dtype: str,
    batch: int,
    repeats: int,
    max_new_tokens: int = 64,
) -> Iterator[Row]:
    """Rows of every arm; at batch 1 the arms alternate prompt by prompt, else pass by pass."""
    groups = [[i] for i in range(len(prompts))] if batch == 1 else [list(range(len(prompts)))]
    for repeat in range(repeats):
        for arm in up:
            arm.server.flush_cache()
        for number, group in enumerate(groups):
            turn = (repeat + number) % len(up)
            for arm in [*up[turn:], *up[:turn]]:
                yield from _ask(arm, prompts, group, dtype, batch, repeat, number, max_new_tokens)


def _ask(
    arm: Arm,
    prompts: Sequence[dict],
    group: Sequence[int],
    dtype: str,
    batch: int,
    repeat: int,
    number: int,
    max_new_tokens: int,
) -> Iterator[Row]:
    """Ask one group of prompts, ``batch`` at a time."""
    arm.new_rounds()

    def ask(index: int) -> Answer:
        return arm.server.timed(prompts[index], max_new_tokens=max_new_tokens)

    started = time.perf_counter()
    if batch == 1:
        answers = [ask(index) for index in group]
    else:
        with ThreadPoolExecutor(batch) as pool:
            answers = list(pool.map(ask, group))
    group_s = answers[0].total_s if batch == 1 else time.perf_counter() - started
    laps = arm.new_rounds() if batch == 1 else []
    for index, answer in zip(group, answers, strict=True):
        # With overlap scheduling one round more is started than a finished request needed.
        own = laps[: answer.rounds]
        yield Row(
            dtype=dtype,
            arm=arm.name,
            batch=batch,
            repeat=repeat,
            prompt=index,
            task=prompts[index]["task"],
            ids=answer.ids,
            rounds=answer.rounds,
            first_s=answer.first_s,
            total_s=answer.total_s,
            group=number,
            group_s=group_s,
            laps_ms={p: sum(lap[p] for lap in own) for p in PHASES} if own else {},
            logged=len(own),
        )


def warm_up(arm: Arm, prompts: Sequence[dict], parallel: int) -> list[Answer]:
    """The first answers of a server pay for lazy set-up; they are not counted."""
    arm.server.generate_all(prompts[:2], 1)
    return arm.server.generate_all(prompts[:parallel], parallel)


def round_log_ms(model: Path, rounds: int = 1000) -> float:
    """Milliseconds that logging one round of ``model`` costs, by logging to a file."""
    import torch
    from sglang.srt.speculative.glance.config import GlanceConfig
    from sglang.srt.speculative.glance.engine.observe.round_log import RoundLog

    about = msgspec.json.decode((model / "config.json").read_bytes())
    vocab_size = about.get("text_config", about)["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        config = GlanceConfig(block=16, budget=32, topk=8, taps=(), mask_token_id=0)
        log = RoundLog(Path(folder) / "rounds.jsonl", "cpu", config)
        accept_lens, logits = torch.tensor([11]), torch.randn(config.budget, vocab_size)
        started = time.perf_counter()
        for _ in range(rounds):
            log.start()
            for phase in PHASES:
                log.lap(phase)
            log.roots(logits)
            log.end(accept_lens, ["0" * 32])
        return 1e3 * (time.perf_counter() - started) / rounds


def _parser() -> argparse.ArgumentParser:
    parser = Parser("bench", __doc__)
    add_models(parser)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1], help="requests at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--eagle3-head-path",
        type=Path,
        help="arms eagle3 (8 passes), eagle3-3, ngram-32 too; default: the shipped model's own",
    )
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=[], help="arms glance-N too: trees of N tokens"
    )
    parser.add_argument("--arms", nargs="+", help="default: all")
    parser.add_argument(
        "--requests",
        type=Path,
        default=PICTURES,
        help="JSONL file, or folder with prompts.jsonl (docs/requests.md)",
    )
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="keep rows.jsonl (as they come), run.json, summary.json and plots there",
    )
    parser.add_argument(
        "--card", type=Path, metavar="HEAD", help="write the accept lengths into this head's card"
    )
    parser.add_argument("--show", type=Path, metavar="DIR", help="only print a kept run's tables")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, list[str]]:
    """The chosen arms. Everything that can be refused is refused here."""
    settle_models(parser, options)
    if is_shipped(options.model_path) and not options.eagle3_head_path:
        options.eagle3_head_path = EAGLE3_HEAD
    every = arms(options.head_path, eagle3_head=options.eagle3_head_path, budgets=options.budgets)
    unknown = sorted(set(options.arms or ()) - set(every))
    if unknown:
        parser.error(f"--arms: got {', '.join(unknown)}; expected among {', '.join(every)}")
    for name, least in (("repeats", 1), ("max_new_tokens", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if min(options.batch) < 1:
        parser.error("--batch must be at least 1")
    if options.out:
        check_folder("--out", options.out)
        if (options.out / ROWS).exists():
            parser.error(f"--out: {options.out} holds a run already; choose another folder")
        if find_spec("matplotlib") is None:
            parser.error("--out draws plots with matplotlib: pip install 'sglang-glance[bench]'")
    return {
        name: flags for name, flags in every.items() if name in {PLAIN, *(options.arms or every)}
    }


def run(
    options: argparse.Namespace, chosen: dict[str, list[str]], console: Console
) -> tuple[Run, list[Row]]:
    """Measure all of it; with ``--out`` each row is kept before the next is asked for."""
    heads = [head for head in (options.head_path, options.eagle3_head_path) if head]
    prompter = Prompter(options.model_path)
    questions = load_prompts(options.requests, prompter.count)
    provenance = describe([options.model_path, *heads, *files(options.requests, questions)])
    prompts = [prompter.request(row) for row in questions]
    shipped = is_shipped(options.model_path)
    measured = Run(provenance, chosen, {}, round_log_ms(options.model_path), shipped)
    rows: list[Row] = []
    with log_folder("bench") as logs, keeping(options.out, measured) as keep:
        for dtype in options.dtype:
            with contextlib.ExitStack() as stack:
                started = time.perf_counter()
                with waiting(console, f"{dtype}: starting {len(chosen)} servers"):
                    up = stack.enter_context(running(chosen, options.model_path, dtype, logs))
                measured.boot_s[dtype] = round(time.perf_counter() - started, 1)
                for row in asked(up, prompts, dtype, options, console):
                    keep(row)
                    rows.append(row)
    return measured, rows


def asked(
    up: Sequence[Arm],
    prompts: Sequence[dict],
    dtype: str,
    options: argparse.Namespace,
    console: Console,
) -> Iterator[Row]:
    """All rows of one dtype, batch size by batch size."""
    for arm in up:
        warm_up(arm, prompts, max(options.batch))
    total = len(options.batch) * options.repeats * len(up) * len(prompts)
    with bar(console, f"{dtype}: asking", total) as advance:
        for batch in options.batch:
            for row in measure(up, prompts, dtype, batch, options.repeats, options.max_new_tokens):
                yield row
                advance()


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.card and not (options.card / "card.json").exists():
        parser.error(f"--card: got {options.card}, which holds no card.json; expected a head's")
    if options.show:
        measured, rows = load(options.show)
    else:
        measured, rows = run(options, _check(parser, options), messages())
    if options.card:
        write_served(options.card, measured, rows)
    summary = summarise(measured, rows)
    show(summary, output())
    if options.out and not options.show:
        write_json(options.out / "summary.json", summary)
        for path in draw(summary, options.out):
            print(path)
    return 0
