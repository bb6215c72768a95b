"""What a reader reads: right values and entropy of its own greedy answers, a row a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from sglang.glance.cli.files import write_json
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.cli.terminal import messages, table
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import by_line, load_numbered, load_prompts, numbered_lines
from sglang.glance.serving.server import starting, wait_until_up
from sglang.glance.tasks import TASKS
from sglang.glance.tasks.cli import Line, write
from sglang.glance.tasks.score import right
from sglang.glance.train.data import Row
from sglang.glance.train.generate import generate, missing
from sglang.glance.train.target import Target
from sglang.srt.speculative.glance.core.law import entropy

CONTEXT, MAX_NEW_TOKENS = 2048, 160


class Score(msgspec.Struct, frozen=True):
    """``num_right``: answers that hold all their values, in order. ``entropy``: mean over
    generated tokens of the next-token distribution's entropy in nats. ``tokens``: mean length."""

    task: str
    num_answers: int
    num_right: int
    entropy: float
    tokens: float

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num_answers


def measure(reader: Path, folder: Path, count: int) -> list[Score]:
    """``count`` held-out pictures a task, asked greedily through a float32 server; pictures,
    ``rows.jsonl`` and ``scores.json`` stay in ``folder``."""
    data = write(folder, "heldout", count)
    prompter, rows = Prompter(reader), folder / "rows.jsonl"
    rows.unlink(missing_ok=True)
    prompts = missing(load_numbered(data), data, rows)
    log = folder / "server.log"
    with starting(reader, log, "--dtype", "float32", device="cpu", context=CONTEXT) as server:
        with waiting(messages(), "starting a server of the reader"):
            wait_until_up(server)
        with bar(messages(), "answers", len(prompts)) as advance:
            ask = prompter.request
            generate(server, prompts, rows, ask, "cpu", MAX_NEW_TOKENS, advance)
    answers = load_prompts(rows, kind=Row)
    decode = msgspec.json.Decoder(Line).decode
    lines = [line for _, line in by_line(numbered_lines(data), data, decode)]
    entropies = own_entropies(reader, prompter, answers)
    found = [score(task, lines, answers, entropies) for task in TASKS]
    write_json(folder / "scores.json", found)
    return found


def own_entropies(reader: Path, prompter: Prompter, answers: Sequence[Row]) -> list[torch.Tensor]:
    """For each answer, the entropy before each of its tokens, ``[len(ids)] float32``, by stock
    transformers in float32 over prompt, picture and answer."""
    target = Target(reader, prompter, (), "cpu", torch.float32)
    found = []
    with torch.inference_mode(), bar(messages(), "entropies", len(answers)) as advance:
        for row in answers:
            inputs = prompter.inputs(row, row.ids)
            logits = target.model(**inputs, logits_to_keep=len(row.ids) + 1).logits
            found.append(entropy(logits[0, :-1]))
            advance()
    return found


def score(
    task: str, lines: Sequence[Line], answers: Sequence[Row], entropies: Sequence[torch.Tensor]
) -> Score:
    chosen = [number for number, line in enumerate(lines) if line.task == task]
    return Score(
        task,
        len(chosen),
        sum(right(task, answers[n].text, lines[n].values) for n in chosen),
        torch.cat([entropies[n] for n in chosen]).mean().item(),
        sum(len(answers[n].ids) for n in chosen) / len(chosen),
    )


def show(scores: Sequence[Score], console: Console) -> None:
    columns = ("answers", "all values\nright", "entropy,\nnats/token", "tokens")
    found = table("", "task", right=columns)
    for each in scores:
        found.add_row(
            each.task,
            str(each.num_answers),
            f"{each.accuracy:.1%}",
            f"{each.entropy:.3f}",
            f"{each.tokens:.1f}",
        )
    console.print(found)
