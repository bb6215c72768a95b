"""What a task makes, and the two splits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
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
    texts: tuple[str, ...]


Asked = tuple[str, str, tuple[str, ...]]  # prompt, answer, values


@dataclass(frozen=True)
class Picture:
    """A picture and what can be asked about it; see :class:`Sample` for the fields."""

    kind: str
    image: Image.Image
    texts: tuple[str, ...]
    ask: Callable[[random.Random], Asked]


Maker = Callable[[random.Random, Split], Picture]
