"""Where a picture's characters and icons stand, told to whoever listens while it is drawn."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

from PIL import ImageDraw, ImageFont

Point = tuple[float, float]


class Character(NamedTuple):
    """Its middle, in pixels of the picture."""

    x: float
    y: float
    text: str


class Icon(NamedTuple):
    """``box``: left, top, right, bottom in pixels of the picture."""

    box: tuple[float, float, float, float]
    kind: str
    colour: str


Mark = Character | Icon
_LISTENING: ContextVar[list[Mark] | None] = ContextVar("_LISTENING", default=None)


@contextlib.contextmanager
def listening() -> Iterator[list[Mark]]:
    """A list that grows with everything drawn meanwhile."""
    marks: list[Mark] = []
    token = _LISTENING.set(marks)
    try:
        yield marks
    finally:
        _LISTENING.reset(token)


def icon(box: tuple[float, float, float, float], kind: str, colour: str) -> None:
    if (marks := _LISTENING.get()) is not None:
        marks.append(Icon(box, kind, colour))


def text(
    at: Point,
    words: str,
    font: ImageFont.FreeTypeFont,
    place: Callable[[Point], Point] | None = None,
    stretch: float = 1.0,
) -> None:
    """``words`` written at ``at`` as Pillow does; ``place`` takes a point to the picture's,
    ``stretch`` widens the font's advances."""
    if (marks := _LISTENING.get()) is None:
        return
    box = font.getbbox(words)
    y = at[1] + (box[1] + box[3]) / 2
    edges = [stretch * font.getlength(words[:n]) for n in range(len(words) + 1)]
    for (left, right), character in zip(itertools.pairwise(edges), words, strict=True):
        point = (at[0] + (left + right) / 2, y)
        marks.append(Character(*(place(point) if place else point), character))


def write(
    draw: ImageDraw.ImageDraw,
    at: Point,
    words: str,
    font: ImageFont.FreeTypeFont,
    fill: tuple[int, ...],
) -> None:
    """Draw ``words`` on the picture and tell it."""
    draw.text(at, words, font=font, fill=fill)
    text(at, words, font)
