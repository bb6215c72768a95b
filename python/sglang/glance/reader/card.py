"""The reader's model card: how it was trained, and what it reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from sglang.glance.cli.files import write_json
from sglang.glance.measure.provenance import Provenance, describe

from .loop import Progress
from .measure import Score

TEXT = """# A small reader

A `Qwen3VLForConditionalGeneration` of {parameters:,} parameters that reads pictures of
192x128 pixels: {layers} text layers of {hidden}, {depth} vision layers of {vision}, patches of
{patch}, {vocab:,} tokens. It was made to measure speculative decoding with: five tasks
(`python -m sglang.glance tasks`), answers phrased freely, nothing else.

| task | answers | all values right | entropy, nats/token | tokens |
|---|---|---|---|---|
{scores}

Held-out pictures, greedy, through an SGLang server in float32. Right: every value asked for stands
in the answer, whole and in order (captions: exactly the things that are there, in order). Entropy:
mean over the generated tokens of the next-token distribution's.

| training | |
|---|---|
| steps | {steps:,} of {batch} pictures with two to five questions each, made while training |
| time | {hours:.1f} h in steps |
| loss, mean of the last 100 steps | {loss:.4f} nats a token |
| optimiser | Muon on matrices, AdamW on the rest; warm-up, then a straight line to zero |
{runs}
| measured by | `{command}` |
| versions | {versions} |
| machine | {machine}, {cores} cores |

`card.json` has the same as data.
"""


class Card(msgspec.Struct, frozen=True):
    """``seconds``: of the training steps; ``loss``: nats a token over the last 100 of them;
    ``runs``: the step and the command of each start."""

    num_parameters: int
    steps: int
    batch: int
    seconds: float
    loss: float
    runs: Sequence[tuple[int, str]]
    scores: Sequence[Score]
    provenance: Provenance


def write_card(reader: Path, checkpoint: Path, batch: int, scores: Sequence[Score]) -> None:
    """``README.md`` and ``card.json`` in ``reader``; ``checkpoint`` is the training's."""
    state = torch.load(checkpoint, weights_only=True)
    progress = Progress(**state["progress"])
    weights = [w for name, w in state["model"].items() if name != "lm_head.weight"]  # it is tied
    card = Card(
        num_parameters=sum(weight.numel() for weight in weights),
        steps=progress.step,
        batch=batch,
        seconds=progress.seconds,
        loss=statistics.fmean(progress.losses[-100:]),
        runs=progress.runs,
        scores=scores,
        provenance=describe([]),
    )
    write_json(reader / "card.json", card)
    config = msgspec.json.decode((reader / "config.json").read_bytes())
    (reader / "README.md").write_text(readme(card, config))


def readme(card: Card, config: dict) -> str:
    text, vision, made = config["text_config"], config["vision_config"], card.provenance
    rows = (
        f"| {each.task} | {each.num_answers} | {each.accuracy:.0%} | "
        f"{each.entropy:.3f} | {each.tokens:.1f} |"
        for each in card.scores
    )
    runs = (f"| from step {step:,} | `{command}` |" for step, command in card.runs)
    return TEXT.format(
        parameters=card.num_parameters,
        layers=text["num_hidden_layers"],
        hidden=text["hidden_size"],
        depth=vision["depth"],
        vision=vision["hidden_size"],
        patch=vision["patch_size"],
        vocab=text["vocab_size"],
        scores="\n".join(rows),
        steps=card.steps,
        batch=card.batch,
        hours=card.seconds / 3600,
        loss=card.loss,
        runs="\n".join(runs),
        command=made.shown_command,
        versions=made.shown_versions,
        machine=made.machine,
        cores=made.cores,
    )
