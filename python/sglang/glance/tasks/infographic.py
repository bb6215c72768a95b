"""Infographics: panels of an icon, a large number and a short label."""

from __future__ import annotations

import functools
import random

from PIL import Image, ImageDraw

from .canvas import FACES, dark, finished, fitting, gradient, light, text_size
from .icons import COLOURS, NAMES, draw_icon
from .phrases import expand, joined, sentence
from .sample import HEIGHT, WIDTH, Asked, Picture, Split
from .trace import write
from .values import Values

_ALL = ("Summarise the infographic.", "What are the key figures?", "List every figure shown.")
_ONE = ("What does the {icon} stand for?", "Which figure is beside the {icon}?")
_LABEL = ("What is the figure for {label}?", "How many {label} are given?")
_OPENERS = "[|The infographic [shows|gives|lists] |There are |We learn of |It counts ]"
_STANDS = "[stands for|goes with|marks|counts]"
_INKS = ("red", "green", "blue", "purple", "orange", "black", "brown")


def infographic(rng: random.Random, split: Split) -> Picture:
    """Two to four panels in a grid, a column or a row, with or without a title."""
    values = Values(rng, split)
    title = values.word() if rng.random() < 0.4 else ""
    count = rng.choice((2, 3, 4)) if not title else rng.choice((2, 3))
    icons = rng.sample(tuple(NAMES), count)
    panels = [(icon, values.amount(), values.word(6)) for icon in icons]
    image, kind = _drawn(panels, title, rng)
    return Picture(kind, image, tuple(values.drawn), functools.partial(_asked, panels, title))


def _asked(panels: list[tuple[str, str, str]], title: str, rng: random.Random) -> Asked:
    choice = rng.random()
    if choice < 0.6:
        texts = tuple(text for _, *texts in panels for text in texts)
        told = (title, *texts) if title else texts
        return rng.choice(_ALL), _summary(panels, title, rng), told
    icon, amount, label = rng.choice(panels)
    if choice < 0.85:
        prompt, told = rng.choice(_ONE).format(icon=icon), (amount, label)
        answer = f"[The {icon} {_STANDS}|It {_STANDS}|Beside the {icon} one reads] {amount} {label}"
        answer = sentence(expand(answer, rng))
    else:
        prompt, told = rng.choice(_LABEL).format(label=label), (amount,)
        answer = f"[The figure is|It says|There are|The {icon} shows|One reads] {amount}"
        answer = sentence(expand(answer, rng))
    return prompt, answer, told


def _summary(panels: list, title: str, rng: random.Random) -> str:
    style = rng.randrange(3)
    if style == 0:
        each = [f"{amount} {label}" for _, amount, label in panels]
    elif style == 1:
        verb = "[shows|with|says|marks]"
        each = [f"the {icon} {verb} {amount} {label}" for icon, amount, label in panels]
    else:
        each = [f"{amount} {label} [({icon})|by the {icon}]" for icon, amount, label in panels]
    parts = [expand(text, rng) for text in each]
    opener = expand(_OPENERS, rng) if style != 1 else expand("[|Here |In it, ]", rng)
    if title:
        under = f"[{title}: |Under the title {title}: |The title is {title}. ]"
        return expand(under, rng) + sentence(opener + joined(parts, rng))
    return sentence(opener + joined(parts, rng))


def _drawn(panels: list, title: str, rng: random.Random) -> tuple[Image.Image, str]:
    start, end = light(rng), light(rng)
    image = gradient((WIDTH, HEIGHT), start, end, rng)
    draw = ImageDraw.Draw(image)
    top = 0
    if title:
        font = fitting(title, FACES, rng.randint(14, 17), WIDTH - 20, rng)
        x = rng.randint(4, max(4, WIDTH - text_size(title, font)[0] - 6))
        write(draw, (x, rng.randint(1, 4)), title, font, dark(rng))
        top = 26
    kind, cells = _cells(len(panels), top, rng)
    for panel, cell in zip(panels, cells, strict=True):
        _panel(draw, panel, cell, end, rng)
    return finished(image, rng), kind


def _cells(count: int, top: int, rng: random.Random) -> tuple[str, list]:
    """Left, top, width and height of each panel, in reading order."""
    if count == 4 or (count == 2 and rng.random() < 0.5):
        rows = count // 2
        height = (HEIGHT - top) // rows
        cells = [
            (column * WIDTH // 2, top + row * height, WIDTH // 2, height)
            for row in range(rows)
            for column in range(2)
        ]
        return "grid", cells
    height = (HEIGHT - top) // count
    return "column", [(0, top + row * height, WIDTH, height) for row in range(count)]


def _panel(draw: ImageDraw.ImageDraw, panel: tuple, cell: tuple, back, rng: random.Random) -> None:
    """Icon at the left; the figure beside it, its label after it or below."""
    icon, amount, label = panel
    left, top, width, height = cell
    side = rng.randint(20, 26)
    x, y = left + rng.randint(3, 7), top + rng.randint(1, max(1, height - side - 3))
    draw_icon(draw, icon, (x, y, x + side, y + side), COLOURS[rng.choice(_INKS)][0], back)
    ink, right = dark(rng), x + side + rng.randint(5, 8)
    room = left + width - right - 3
    if width > WIDTH // 2 and rng.random() < 0.6:
        text = f"{amount} {label}"
        font = fitting(text, FACES, rng.randint(13, 16), room, rng)
        write(draw, (right, y + (side - 18) // 2 + rng.randint(-1, 1)), text, font, ink)
        return
    top = min(max(top, y - 6), top + max(0, height - 38))
    font = fitting(amount, FACES, rng.randint(13, 16), room, rng)
    write(draw, (right, top), amount, font, ink)
    below = top + int(font.getbbox(amount)[3]) + 2
    font = fitting(label, FACES, rng.randint(12, 13), room, rng)
    write(draw, (right, below - int(font.getbbox(label)[1]) + 1), label, font, ink)
