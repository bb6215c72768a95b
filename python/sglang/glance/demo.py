"""``python -m sglang.glance demo``: the same questions to plain decoding and to GLANCE.

Two real servers, one after the other. Each answers every question twice: first shown as it streams
(which also warms the server up), then timed with nothing shown, caches emptied in between. The
last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from sglang.glance.assets import HEAD, PICTURES, READER
from sglang.glance.bench import COLD, arms
from sglang.glance.figures import (
    GLANCE,
    PLAIN,
    Row,
    accept_length,
    decode_tok_s,
    end_to_end_tok_s,
    prompts,
)
from sglang.glance.machine import describe
from sglang.glance.prompter import Prompter
from sglang.glance.prompts import load_prompts
from sglang.glance.server import Answer, Server, serve, unwind_on_signals

NAMES = {PLAIN: "plain decoding", GLANCE: "GLANCE"}


def line(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` characters, its end kept."""
    flat = text.replace("\n", " | ")
    return flat if len(flat) <= width else "..." + flat[3 - width :]


def shown(
    server: Server, arm: str, questions: Sequence[dict], console: Console, started: float
) -> list[Answer]:
    """Ask every question and show its answer as it grows."""
    answers = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[answer]}", markup=False),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=20,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task(NAMES[arm], total=len(questions), answer="")
        for number, question in enumerate(questions):
            for answer in server.stream(question):
                progress.update(bar, answer=line(answer.text, console.width - 50))
            answers.append(answer)
            progress.advance(bar)
            rounds = f", {answer.rounds} rounds" if answer.rounds else ""
            said = (
                f"[{arm}] {number + 1:2d} {question['task']:11s} {line(answer.text, 60)}  "
                f"({len(answer.ids)} tokens{rounds}, {answer.total_s:.2f} s)"
            )
            console.print(Text(said), soft_wrap=True)
            if number == 0:
                took = time.perf_counter() - started
                console.print(f"first answer {took:.0f} s after the server's start")
    return answers


def timed(
    server: Server, arm: str, dtype: str, questions: Sequence[dict], console: Console
) -> list[Row]:
    """Ask every question again, quietly, from an empty cache."""
    server.flush_cache()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    rows = []
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        for number in progress.track(range(len(questions)), description="the same again, timed"):
            answer = server.timed(questions[number])
            rows.append(
                Row(
                    dtype=dtype,
                    arm=arm,
                    batch=1,
                    repeat=0,
                    prompt=number,
                    task=questions[number]["task"],
                    ids=answer.ids,
                    rounds=answer.rounds,
                    first_s=answer.first_s,
                    total_s=answer.total_s,
                    group=number,
                    group_s=answer.total_s,
                )
            )
    return rows


def ask(
    arm: str,
    flags: Sequence[str],
    options: argparse.Namespace,
    questions: Sequence[dict],
    console: Console,
) -> tuple[list[Answer], list[Row]]:
    """One server's shown answers and timed rows. The server has stopped on return."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="glance-demo-") as logs:
        log = Path(logs) / f"{arm}.log"
        note = f"starting the server: {NAMES[arm]}, {options.dtype}"
        console.print(f"{note} (20 to 60 s, mostly imports)")
        with (
            console.status(note) as status,
            serve(options.model_path, log, "--dtype", options.dtype, *flags, env=COLD) as server,
        ):
            status.stop()
            console.print(f"up after {time.perf_counter() - started:.0f} s")
            answers = shown(server, arm, questions, console, started)
            return answers, timed(server, arm, options.dtype, questions, console)


def departures(plain: Sequence[Answer | Row], glance: Sequence[Answer | Row]) -> list[int]:
    """Numbers (from 1) of the questions whose token ids differ."""
    pairs = enumerate(zip(plain, glance, strict=True), 1)
    return [number for number, (theirs, ours) in pairs if theirs.ids != ours.ids]


def result(
    plain: Sequence[Row], glance: Sequence[Row], differ: Sequence[int], machine: str
) -> dict:
    """The JSON object of the last line. Speeds are decode-only unless ``end_to_end`` says
    otherwise: (tokens - requests) / time after the first token, against tokens / all time."""
    slow, fast = prompts(plain).values(), prompts(glance).values()
    plain_tok_s, glance_tok_s = decode_tok_s(slow), decode_tok_s(fast)
    plain_whole, glance_whole = end_to_end_tok_s(slow), end_to_end_tok_s(fast)
    return {
        "identical": not differ,
        "accept_length": round(accept_length(glance), 3),
        "speedup": round(glance_tok_s / plain_tok_s, 3),
        "plain_tok_s": round(plain_tok_s, 1),
        "glance_tok_s": round(glance_tok_s, 1),
        "speedup_end_to_end": round(glance_whole / plain_whole, 3),
        "plain_tok_s_end_to_end": round(plain_whole, 1),
        "glance_tok_s_end_to_end": round(glance_whole, 1),
        "requests": len(glance),
        "tokens": sum(len(row.ids) for row in glance),
        "rounds": sum(row.rounds for row in glance),
        "dtype": glance[0].dtype,
        "machine": machine,
    }


def table(out: dict, differ: Sequence[int]) -> Table:
    what = Table(title=f"{out['requests']} questions, {out['tokens']} tokens, {out['dtype']}")
    for name in ("", NAMES[PLAIN], NAMES[GLANCE], "GLANCE / plain"):
        what.add_column(name, justify="left" if not name else "right")
    what.add_row(
        "tokens/s, decode only",
        f"{out['plain_tok_s']}",
        f"{out['glance_tok_s']}",
        f"{out['speedup']:.2f}x",
    )
    what.add_row(
        "tokens/s, end to end",
        f"{out['plain_tok_s_end_to_end']}",
        f"{out['glance_tok_s_end_to_end']}",
        f"{out['speedup_end_to_end']:.2f}x",
    )
    what.add_row("tokens a round (accept length)", "1", f"{out['accept_length']:.2f}", "")
    verdict = "yes, all" if not differ else "NO: questions " + ", ".join(map(str, differ))
    what.add_row("token ids identical", "", verdict, "")
    what.caption = (
        "decode only = (tokens - requests) / time from each first to last token; end to end = "
        "tokens / time from sending to last token; accept length = (tokens - requests) / rounds"
    )
    return what


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sglang.glance demo", description=__doc__)
    parser.add_argument("--model-path", type=Path, default=READER)
    parser.add_argument("--head-path", type=Path, default=HEAD)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line here too")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if ids differ in float32; bfloat16 may part at near ties and only reports it."""
    options = _parser().parse_args(argv)
    console = Console(highlight=False)
    prompter = Prompter(options.model_path)
    questions = [prompter.request(row) for row in load_prompts(PICTURES, prompter.count)]
    flags = arms(options.head_path)
    try:
        with unwind_on_signals():
            told, plain = ask(PLAIN, flags[PLAIN], options, questions, console)
            drafted, glance = ask(GLANCE, flags[GLANCE], options, questions, console)
    except KeyboardInterrupt:
        console.print("interrupted; the servers have stopped")
        return 130
    differ = sorted({*departures(told, drafted), *departures(plain, glance)})
    made = describe([])
    out = result(plain, glance, differ, f"{made.machine}, {made.cores} cores, {made.kernels}")
    console.print(table(out, differ))
    last = json.dumps(out)
    if options.json:
        options.json.write_text(last + "\n")
    print(last, flush=True)
    return 1 if differ and options.dtype == "float32" else 0
