"""What a task makes, and the two splits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from PIL import Image

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
WIDTH, HEIGHT = 192, 128  # pixels; a portrait picture swaps them


@dataclass(frozen=True)
class Sample:
    """One picture with a question.

    ``values``: what a right answer must hold, in the order of ``answer``, which is one of many
    admissible phrasings. ``texts``: every string drawn that is not a fixed label of its kind.
    """

    task: str
    kind: str
    image: Image.Image
    prompt: str
    answer: str
    values: tuple[str, ...]
    texts: tuple[str, ...] = field(default=())


Maker = Callable[[random.Random, Split], Sample]


def seeded(task: str, split: Split, index: int) -> random.Random:
    """Everything random about a sample comes from here; the split is part of the seed."""
    return random.Random(f"{task}/{split}/{index}")
