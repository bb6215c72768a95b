"""Scene text: a few words on signs in a cluttered picture."""

from __future__ import annotations

import functools
import math
import random

from PIL import Image, ImageDraw

from . import trace
from .canvas import FACES, Colour, dark, finished, fitting, gradient, light, text_size
from .icons import COLOURS
from .phrases import expand, joined, sentence
from .sample import HEIGHT, WIDTH, Asked, Picture, Split
from .values import Values

# what a sign is made of: name, and whether its letters are light
BOARDS = {"red": True, "blue": True, "green": True, "black": True, "yellow": False, "white": False}
ROW = 40  # pixels
_READ_ALL = (
    "What do the signs say?",
    "Read the text in the scene.",
    "Which words can be read here?",
)
_READ_ONE = ("What does the {board} sign say?", "What is written on the {board} sign?")
_SAYS = "[says|reads|shows|has the words]"
_OPENERS = "[|In this scene, |From first to last, |As far as one can read, |Here, ]"


def scene_text(rng: random.Random, split: Split) -> Picture:
    """One to three signs side by side or one above the other; one or two words on each."""
    values = Values(rng, split)
    image = _clutter(rng)
    count = rng.choice((1, 2, 2, 3))
    boards = rng.sample(tuple(BOARDS), count)
    texts = [_text(values, rng) for _ in boards]
    for board, text, box in zip(boards, texts, _boxes(count, rng), strict=True):
        _hang(image, board, text, box, rng)
    signs = list(zip(boards, texts, strict=True))
    ask = functools.partial(_asked, signs)
    return Picture(f"{count} signs", finished(image, rng), tuple(texts), ask)


def _asked(signs: list[tuple[str, str]], rng: random.Random) -> Asked:
    if len(signs) > 1 and rng.random() < 0.35:
        board, text = rng.choice(signs)
        prompt = rng.choice(_READ_ONE).format(board=board)
        return prompt, sentence(_one(board, text, rng)), (text,)
    parts = [_part(board, text, rng) for board, text in signs]
    answer = expand(_OPENERS, rng) + joined(parts, rng)
    return rng.choice(_READ_ALL), sentence(answer), tuple(text for _, text in signs)


def _text(values: Values, rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return f"{values.word(6)} {values.number(2, 99)}"
    if kind == 1:
        return f"{values.word(5)} {values.word(5)}"
    return values.word(7)


def _part(board: str, text: str, rng: random.Random) -> str:
    return expand(
        f"[the {board} sign {_SAYS} {text}|{text} is on the {board} [sign|board]|"
        f"a {board} [sign|board] {_SAYS} {text}]",
        rng,
    )


def _one(board: str, text: str, rng: random.Random) -> str:
    return expand(
        f"[It {_SAYS} {text}|The {board} [sign|board] {_SAYS} {text}|"
        f"{text} is [written|printed|painted] on [it|the {board} sign]|"
        f"[The words on it are|On it one reads|One can read] {text}]",
        rng,
    )


def _clutter(rng: random.Random) -> Image.Image:
    """Walls, windows and stripes that say nothing."""
    image = gradient((WIDTH, HEIGHT), _muted(rng), _muted(rng), rng)
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randint(6, 14)):
        x, y = rng.randint(-20, WIDTH), rng.randint(-20, HEIGHT)
        box = (x, y, x + rng.randint(6, 60), y + rng.randint(6, 40))
        shape = rng.choice((draw.rectangle, draw.ellipse))
        shape(box, fill=_muted(rng), outline=dark(rng) if rng.random() < 0.3 else None)
    for _ in range(rng.randint(0, 4)):
        ends = [(rng.randint(0, WIDTH), rng.randint(0, HEIGHT)) for _ in range(2)]
        draw.line(ends, fill=_muted(rng), width=rng.randint(1, 3))
    return image


def _muted(rng: random.Random) -> Colour:
    level = rng.randint(110, 190)
    return tuple(level + rng.randint(-20, 20) for _ in range(3))


def _boxes(count: int, rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Cells of a row or of a column, left to right or top to bottom; a row is no higher than
    that it can be told from a column."""
    if count == 1:
        return [(0, 0, WIDTH, HEIGHT)]
    if count == 2 and rng.random() < 0.5:
        top = rng.randint(0, HEIGHT - ROW)
        return [(0, top, WIDTH // 2, top + ROW), (WIDTH // 2, top, WIDTH, top + ROW)]
    height = HEIGHT // count
    return [(0, row * height, WIDTH, (row + 1) * height) for row in range(count)]


def _hang(image: Image.Image, board: str, text: str, cell: tuple, rng: random.Random) -> None:
    left, top, right, bottom = cell
    font = fitting(text, FACES, rng.randint(13, 18), right - left - 16, rng)
    wide, high = text_size(text, font)
    pad = rng.randint(3, 6)
    sign = Image.new("RGBA", (wide + 2 * pad, high + 2 * pad), (*rng.choice(COLOURS[board]), 255))
    draw = ImageDraw.Draw(sign)
    ink = light(rng) if BOARDS[board] else dark(rng)
    if rng.random() < 0.5:
        draw.rectangle((0, 0, sign.width - 1, sign.height - 1), outline=(*ink, 255))
    origin = font.getbbox(text)
    draw.text((pad - origin[0], pad - origin[1]), text, font=font, fill=(*ink, 255))
    size, angle = sign.size, 0.0
    if rng.random() < 0.4:
        angle = rng.uniform(-4, 4)
        sign = sign.rotate(angle, expand=True, resample=Image.Resampling.BICUBIC)
    x = left + rng.randint(0, max(0, right - left - sign.width))
    y = top + rng.randint(0, max(0, bottom - top - sign.height))
    image.paste(sign, (x, y), sign)
    middle = (x + sign.width / 2, y + sign.height / 2)
    place = functools.partial(_turned, math.radians(angle), size, middle)
    trace.text((pad - origin[0], pad - origin[1]), text, font, place)


def _turned(
    angle: float, size: tuple[int, int], middle: trace.Point, point: trace.Point
) -> trace.Point:
    """Where a point of a sign stands, turned against the clock about its middle."""
    u, v = point[0] - size[0] / 2, point[1] - size[1] / 2
    sin, cos = math.sin(angle), math.cos(angle)
    return middle[0] + u * cos + v * sin, middle[1] - u * sin + v * cos
