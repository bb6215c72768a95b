"""Small drawings that captions and infographics are made of."""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import ImageDraw

from . import trace
from .canvas import Colour

# name shown first: the other words for it that an answer may use
NAMES = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "diamond": ("diamond", "rhombus"),
    "star": ("star",),
    "heart": ("heart",),
    "house": ("house", "cottage"),
    "tree": ("tree", "fir"),
    "moon": ("moon", "crescent"),
    "boat": ("boat", "ship"),
    "flower": ("flower", "blossom"),
    "arrow": ("arrow", "pointer"),
    "ring": ("ring", "hoop"),
    "cross": ("cross", "plus"),
}
COLOURS: dict[str, tuple[Colour, ...]] = {
    "red": ((214, 34, 38), (190, 24, 44)),
    "green": ((38, 150, 62), (30, 124, 52)),
    "blue": ((40, 84, 206), (28, 62, 170)),
    "yellow": ((244, 208, 36), (232, 190, 20)),
    "purple": ((132, 48, 168), (110, 40, 150)),
    "orange": ((240, 130, 24), (226, 116, 16)),
    "black": ((22, 22, 26), (40, 40, 44)),
    "white": ((250, 250, 250), (238, 238, 242)),
    "pink": ((244, 130, 176), (232, 112, 160)),
    "brown": ((126, 78, 40), (108, 66, 34)),
}
COLOUR_NAMES = {
    "purple": ("purple", "violet"),
    "red": ("red", "crimson"),
    "blue": ("blue", "azure"),
}
_NAME_OF = {shade: name for name, shades in COLOURS.items() for shade in shades}
Box = tuple[float, float, float, float]


def draw_icon(draw: ImageDraw.ImageDraw, name: str, box: Box, fill: Colour, back: Colour) -> None:
    """Draw ``name`` within ``box``; ``back`` shows through the holes of a ring or a moon."""
    _DRAWN[name](draw, box, fill, back)
    trace.icon(box, name, _NAME_OF[fill])


def _at(box: Box, *points: tuple[float, float]) -> list[tuple[float, float]]:
    """Points given in fractions of the box."""
    x, y, right, bottom = box
    return [(x + u * (right - x), y + v * (bottom - y)) for u, v in points]


def _shape(*points: tuple[float, float]) -> Callable:
    def drawn(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
        draw.polygon(_at(box, *points), fill=fill)

    return drawn


def _star_points() -> list[tuple[float, float]]:
    points = []
    for turn in range(10):
        radius, angle = (0.52, 0.22)[turn % 2], math.pi * (turn / 5 - 0.5)
        points.append((0.5 + radius * math.cos(angle), 0.53 + radius * math.sin(angle)))
    return points


def _circle(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.ellipse(box, fill=fill)


def _heart(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    (x, y), (middle, _), (right, half), (low, bottom) = _at(
        box, (0, 0.05), (0.54, 0), (1, 0.58), (0.5, 1)
    )
    draw.ellipse((x, y, middle, half), fill=fill)
    draw.ellipse((x + right - middle, y, right, half), fill=fill)
    draw.polygon([*_at(box, (0.04, 0.42), (0.96, 0.42)), (low, bottom)], fill=fill)


def _house(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.polygon(_at(box, (0, 0.45), (0.5, 0), (1, 0.45)), fill=fill)
    draw.rectangle(sum(_at(box, (0.14, 0.45), (0.86, 1)), ()), fill=fill)
    draw.rectangle(sum(_at(box, (0.42, 0.64), (0.6, 1)), ()), fill=back)


def _tree(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.polygon(_at(box, (0.18, 0.45), (0.5, 0), (0.82, 0.45)), fill=fill)
    draw.polygon(_at(box, (0.04, 0.8), (0.5, 0.22), (0.96, 0.8)), fill=fill)
    draw.rectangle(sum(_at(box, (0.42, 0.78), (0.58, 1)), ()), fill=fill)


def _moon(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.ellipse(box, fill=fill)
    draw.ellipse(sum(_at(box, (0.38, -0.08), (1.2, 0.84)), ()), fill=back)


def _boat(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.polygon(_at(box, (0, 0.66), (1, 0.66), (0.78, 1), (0.22, 1)), fill=fill)
    draw.polygon(_at(box, (0.5, 0), (0.5, 0.6), (0.92, 0.6)), fill=fill)
    draw.polygon(_at(box, (0.42, 0.16), (0.42, 0.6), (0.12, 0.6)), fill=fill)


def _flower(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    for u, v in ((0.28, 0.0), (0.56, 0.2), (0.46, 0.54), (0.1, 0.54), (0.0, 0.2)):
        draw.ellipse(sum(_at(box, (u, v), (u + 0.44, v + 0.44)), ()), fill=fill)
    draw.ellipse(sum(_at(box, (0.36, 0.36), (0.64, 0.64)), ()), fill=back)


def _ring(draw: ImageDraw.ImageDraw, box: Box, fill: Colour, back: Colour) -> None:
    draw.ellipse(box, fill=fill)
    draw.ellipse(sum(_at(box, (0.26, 0.26), (0.74, 0.74)), ()), fill=back)


_DRAWN: dict[str, Callable] = {
    "circle": _circle,
    "square": _shape((0, 0), (1, 0), (1, 1), (0, 1)),
    "triangle": _shape((0.5, 0), (1, 1), (0, 1)),
    "diamond": _shape((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    "star": _shape(*_star_points()),
    "heart": _heart,
    "house": _house,
    "tree": _tree,
    "moon": _moon,
    "boat": _boat,
    "flower": _flower,
    "arrow": _shape(
        (0, 0.32), (0.55, 0.32), (0.55, 0.04), (1, 0.5), (0.55, 0.96), (0.55, 0.68), (0, 0.68)
    ),
    "ring": _ring,
    "cross": _shape(
        (0.34, 0), (0.66, 0), (0.66, 0.34), (1, 0.34), (1, 0.66), (0.66, 0.66),
        (0.66, 1), (0.34, 1), (0.34, 0.66), (0, 0.66), (0, 0.34), (0.34, 0.34),
    ),
}  # fmt: skip
