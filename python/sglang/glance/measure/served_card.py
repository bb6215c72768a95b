"""Accept lengths through a server, written into the model card of the head they are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from sglang.glance.cli.files import write_json
from sglang.glance.measure.figures import POOLED, Row, Run, accept_length, identical, select
from sglang.glance.serving.arms import PLAIN

HEADING = "## Through a server"
FORMULA = (
    "Accept length = (tokens - requests) / verify rounds, pooled: the bonus counts, a request's\n"
    "first token (its prefill's) does not. The prompts are held out from every training."
)


class Served(msgspec.Struct, frozen=True):
    """One arm of a measurement. ``flags``: its server's, folders by name only; ``identical``: how
    many answers had plain decoding's ids; ``accept_length``: by task, and ``all``; ``data``:
    SHA-256 over model, heads and prompts."""

    flags: list[str]
    dtype: str
    requests: int
    identical: int
    accept_length: dict[str, float]
    machine: str
    commit: str | None
    data: str


def served(run: Run, rows: Sequence[Row]) -> dict[str, Served]:
    """Every arm that drafts, at the first dtype and batch of ``rows``."""
    rows = select(rows, dtype=rows[0].dtype, batch=rows[0].batch)
    tasks = [*dict.fromkeys(row.task for row in rows), POOLED]
    plain, made = select(rows, arm=PLAIN), run.provenance
    out = {}
    for arm, flags in run.arms.items():
        if arm == PLAIN:
            continue
        own = select(rows, arm=arm)
        same, asked = identical(own, plain)
        out[arm] = Served(
            flags=[Path(flag).name for flag in flags],
            dtype=rows[0].dtype,
            requests=asked,
            identical=same,
            accept_length={task: accept_length(select(own, task=task)) for task in tasks},
            machine=f"{made.machine}, {made.cores} cores",
            commit=made.commit,
            data=made.data,
        )
    return out


def write_served(folder: Path, run: Run, rows: Sequence[Row]) -> None:
    """Into ``card.json`` and ``README.md`` of ``folder``, beside what other runs wrote there."""
    path, about = folder / "card.json", folder / "README.md"
    card = msgspec.json.decode(path.read_bytes())
    card["served"] = card.get("served", {}) | msgspec.to_builtins(served(run, rows))
    write_json(path, card)
    text = about.read_text().partition(f"\n{HEADING}")[0]
    about.write_text(f"{text}\n{HEADING}\n\n{table(card['served'])}\n{FORMULA}\n")


def table(arms: dict[str, dict]) -> str:
    """Markdown: an arm a row, a task a column; empty where an arm was not asked."""
    asked = dict.fromkeys(task for arm in arms.values() for task in arm["accept_length"])
    tasks = [*(task for task in asked if task != POOLED), POOLED]
    lines = [
        f"| arm | dtype | {' | '.join(tasks)} | plain's ids |",
        f"|---|---|{'---|' * len(tasks)}---|",
    ]
    for name, arm in arms.items():
        found = arm["accept_length"]
        figures = " | ".join(f"{found[task]:.2f}" if task in found else "" for task in tasks)
        same = f"{arm['identical']} of {arm['requests']}"
        lines.append(f"| {name} | {arm['dtype']} | {figures} | {same} |")
    return "\n".join(lines) + "\n"
