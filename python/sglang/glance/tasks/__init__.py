"""``glance tasks``: pictures with questions of five kinds, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from .caption import caption
from .chart import chart
from .document import document
from .infographic import infographic
from .sample import SPLITS, Maker, Sample, Split
from .scene import scene_text

TASKS: dict[str, Maker] = {
    "caption": caption,
    "scene_text": scene_text,
    "infographic": infographic,
    "document": document,
    "chart": chart,
}
__all__ = ["SPLITS", "TASKS", "Sample", "Split", "main", "make", "questions"]


def make(task: str, split: Split, index: int) -> Sample:
    """The ``index``-th sample of a split, always the same one."""
    return next(questions(task, split, index))


def questions(task: str, split: Split, index: int) -> Iterator[Sample]:
    """Questions about the ``index``-th picture, without end; the first is :func:`make`'s.

    Everything random comes from the seeds made here, of which the split is a part.
    """
    seed = f"{task}/{split}/{index}"
    picture = TASKS[task](random.Random(seed), split)
    rng = random.Random(f"{seed}/questions")
    while True:
        told = picture.ask(rng)
        yield Sample(task, picture.kind, picture.image, *told, picture.texts)


def main(argv: Sequence[str]) -> int:
    from .cli import main as run

    return run(argv)
