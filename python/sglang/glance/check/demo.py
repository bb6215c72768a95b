"""``glance demo``: the same questions to plain decoding and to GLANCE.

Two real servers, one after the other. Each answers every question twice: first shown as it streams
(which also warms the server up), then timed with nothing shown, caches emptied in between. The
last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sglang.glance.cli.files import check_file, write_json
from sglang.glance.cli.options import Parser, add_models, settle_models
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.cli.terminal import note, output
from sglang.glance.cli.terminal import table as new_table
from sglang.glance.measure.figures import (
    Row,
    accept_length,
    decode_tok_s,
    end_to_end_tok_s,
    prompts,
)
from sglang.glance.measure.provenance import describe
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import load_prompts
from sglang.glance.serving.arms import COLD, GLANCE, NAMES, PLAIN, arms
from sglang.glance.serving.server import Answer, Server, log_folder, starting, wait_until_up
from sglang.glance.shipped import PICTURES


def line(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` characters, its end kept."""
    flat = text.replace("\n", " | ")
    return flat if len(flat) <= width else "..." + flat[3 - width :]


def shown(
    server: Server, arm: str, questions: Sequence[dict], console: Console, started: float
) -> list[Answer]:
    """Ask every question and show its answer as it grows."""
    answers = []
    with bar(console, NAMES[arm], len(questions)) as advance:
        for number, question in enumerate(questions):
            for answer in server.stream(question):
                advance(0, line(answer.text, console.width - 70))
            answers.append(answer)
            advance()
            rounds = f", {answer.rounds} rounds" if answer.rounds else ""
            said = f"({len(answer.ids)} tokens{rounds}, {answer.total_s:.2f} s)"
            asked = f"[{arm}] {number + 1:2d} {question['task']:11s}"
            width = console.width - len(asked) - len(said) - 3
            note(console, f"{asked} {line(answer.text, width)} {said}")
            if number == 0:
                took = time.perf_counter() - started
                console.print(f"first answer {took:.0f} s after the server's start")
    return answers


def timed(
    server: Server, arm: str, dtype: str, questions: Sequence[dict], console: Console
) -> list[Row]:
    """Ask every question again, quietly, from an empty cache."""
    server.flush_cache()
    rows = []
    with bar(console, "the same again, timed", len(questions)) as advance:
        for number, question in enumerate(questions):
            answer = server.timed(question)
            advance()
            rows.append(
                Row(
                    dtype=dtype,
                    arm=arm,
                    batch=1,
                    repeat=0,
                    prompt=number,
                    task=question["task"],
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
    started, given = time.perf_counter(), ("--dtype", options.dtype, *flags)
    with (
        log_folder("demo") as logs,
        starting(options.model_path, logs / f"{arm}.log", *given, env=COLD) as server,
    ):
        with waiting(console, f"starting a server: {NAMES[arm]}, {options.dtype}"):
            wait_until_up(server)
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
    title = f"{out['requests']} questions, {out['tokens']} tokens, {out['dtype']}"
    what = new_table(title, "", right=(NAMES[PLAIN], NAMES[GLANCE], "GLANCE / plain"))
    for name, key in (("decode only", ""), ("end to end", "_end_to_end")):
        speeds = (f"{out[f'{arm}_tok_s{key}']}" for arm in (PLAIN, GLANCE))
        what.add_row(f"tokens/s, {name}", *speeds, f"{out[f'speedup{key}']:.2f}x")
    what.add_row("tokens a round (accept length)", "1", f"{out['accept_length']:.2f}", "")
    verdict = "yes, all" if not differ else "NO: questions " + ", ".join(map(str, differ))
    what.add_row("token ids identical", "", verdict, "")
    return what


FORMULAS = (
    "decode only = (tokens - requests) / time from each first to last token; end to end = tokens / "
    "time from sending to last token; accept length = (tokens - requests) / rounds"
)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("demo", __doc__)
    add_models(parser)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of both"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the last line here too")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if ids differ in float32; bfloat16 may part at near ties and only reports it."""
    parser = _parser()
    options = parser.parse_args(argv)
    settle_models(parser, options)
    check_file("--json", options.json)
    console = output()
    prompter = Prompter(options.model_path)
    questions = [prompter.request(row) for row in load_prompts(PICTURES, prompter.count)]
    flags = arms(options.head_path)
    told, plain = ask(PLAIN, flags[PLAIN], options, questions, console)
    drafted, glance = ask(GLANCE, flags[GLANCE], options, questions, console)
    differ = sorted({*departures(told, drafted), *departures(plain, glance)})
    made = describe([])
    out = result(plain, glance, differ, f"{made.machine}, {made.cores} cores, {made.kernels}")
    console.print("", table(out, differ), "", FORMULAS)
    last = json.dumps(out)
    print(last, flush=True)
    if options.json:
        write_json(options.json, out)
    return 1 if differ and options.dtype == "float32" else 0
