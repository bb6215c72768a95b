"""The model card beside the weights: ``README.md``, ``card.json``, ``loss.png``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec
from sglang.glance.cli.files import write_json
from sglang.glance.measure.provenance import Provenance
from sglang.glance.train.loop import Entry, Plan
from sglang.glance.train.measure import FORMULA, Accepted


class Card(msgspec.Struct, frozen=True):
    """``provenance.data``: SHA-256 over prompts, answers and pictures."""

    target: str
    num_parameters: int
    plan: Plan
    held_out: Accepted
    provenance: Provenance


AFTER = (
    "Measured on the bfloat16 weights of this folder; the tree that a server verifies "
    "commits more a round."
)
ABOUT = {
    "GLANCE": "A block-diffusion draft head in DFlash's checkpoint format; embedding and LM head "
    "are the target's.",
    "EAGLE3": "A one-layer draft head, a token a pass, trained on its own states; the embedding is "
    "the target's, the LM head began as a copy of it.",
}
TEXT_ONLY = (
    " An ablation, not for serving: it learnt from, and was measured on, states of the "
    "prompt without its picture."
)
TEXT = """# {algorithm} head for {target}

{about} {parameters:,} parameters, trained by `python -m sglang.glance train` for this target only.

    python -m sglang.launch_server --model-path {target} --speculative-algorithm {algorithm} \\
        --speculative-draft-model-path HEAD

| measured | |
|---|---|
| accept length, held out | {accept_len:.3f} |
| of | {answers} answers, {tokens:,} tokens, {rounds:,} rounds |
| loss, last step | {loss:.4f} nats a predicted token, weighted as trained |
| predicted tokens right, last step | {accuracy:.1%} |

{formula}

![loss](loss.png)

| training | |
|---|---|
| rows | {num_rows:,}, answered by the target itself |
| data SHA-256 | `{data}` |
| updates | {steps:,} of {batch_rows} rows, {recipe} |
| learning rate | {lr:g} peak, 4 % warm-up, cosine to 0; Muon on matrices, AdamW on norms, clip 1 |
| dtype | products in {dtype}, weights in float32 |
| versions | {versions} |
| machine | {machine}, {cores} cores |
| command | `{command}` |

`card.json` has the same as data.
"""


def write_card(folder: Path, card: Card, log: Sequence[Entry]) -> None:
    plot(log, folder / "loss.png")
    body = msgspec.to_builtins(card)
    body["held_out"] |= {"accept_len": card.held_out.accept_len, "formula": FORMULA}
    body["last"] = msgspec.to_builtins(log[-1])
    write_json(folder / "card.json", body)
    (folder / "README.md").write_text(readme(card, log[-1]))


def readme(card: Card, last: Entry) -> str:
    plan, made, held = card.plan, card.provenance, card.held_out
    recipe = {k: v for k, v in plan.recipe.items() if k != "head" and v not in ("", None)}
    algorithm = plan.recipe["algorithm"]
    return TEXT.format(
        algorithm=algorithm,
        about=ABOUT[algorithm] + TEXT_ONLY * plan.recipe["text_only_states"],
        target=card.target,
        parameters=card.num_parameters,
        accept_len=held.accept_len,
        tokens=held.num_tokens,
        rounds=held.num_rounds,
        answers=held.num_answers,
        loss=last.loss,
        accuracy=last.accuracy,
        formula=textwrap.fill(f"{FORMULA}. {AFTER}", 100),
        num_rows=plan.num_rows,
        data=made.data,
        steps=plan.steps,
        batch_rows=plan.batch_rows,
        recipe=", ".join(f"{key} {value}" for key, value in recipe.items()),
        lr=plan.lr,
        dtype="bfloat16" if plan.bf16 else "float32",
        versions=made.shown_versions,
        machine=made.machine,
        cores=made.cores,
        command=made.shown_command,
    )


def plot(log: Sequence[Entry], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, left = pyplot.subplots(figsize=(7, 4), layout="constrained")
    left.plot([e.step for e in log], [e.loss for e in log], color="tab:blue", linewidth=1)
    left.set(xlabel="update", ylabel="loss, nats a predicted token (weighted)")
    left.grid(alpha=0.3)
    measured = [entry for entry in log if entry.accept_len is not None]
    right = left.twinx()
    right.plot(
        [e.step for e in measured], [e.accept_len for e in measured], "o-", color="tab:orange"
    )
    right.set_ylabel("accept length, held out (chain)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
