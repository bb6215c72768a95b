"""``python -m sglang.glance tasks``: pictures with questions of five kinds, made from a seed."""

from __future__ import annotations

from collections.abc import Sequence

from .caption import caption
from .chart import chart
from .document import document
from .infographic import infographic
from .sample import SPLITS, Maker, Sample, Split, seeded
from .scene import scene_text

TASKS: dict[str, Maker] = {
    "caption": caption,
    "scene_text": scene_text,
    "infographic": infographic,
    "document": document,
    "chart": chart,
}
__all__ = ["SPLITS", "TASKS", "Sample", "Split", "main", "make"]


def make(task: str, split: Split, index: int) -> Sample:
    """The ``index``-th sample of a split, always the same one."""
    return TASKS[task](seeded(task, split, index), split)


def main(argv: Sequence[str]) -> int:
    from .cli import main as run

    return run(argv)
