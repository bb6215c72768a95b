"""Captioning: a scene of two to four things, told from left to right in many admissible ways."""

from __future__ import annotations

import functools
import random

from PIL import Image, ImageDraw

from .canvas import Colour, finished, gradient
from .icons import COLOUR_NAMES, COLOURS, NAMES, draw_icon
from .phrases import expand, sentence
from .sample import HEIGHT, WIDTH, Asked, Picture, Split

PROMPTS = (
    "Describe the picture.",
    "Write a caption for this image.",
    "What can be seen here?",
    "Caption this.",
)
# background: its two colours, and ways to speak of it
GROUNDS: dict[str, tuple[Colour, Colour, str]] = {
    "sky": ((150, 200, 240), (214, 234, 250), "[the|a clear] sky"),
    "sand": ((236, 216, 170), (224, 198, 146), "[|warm ]sand"),
    "grass": ((160, 206, 130), (186, 222, 150), "[grass|a meadow]"),
    "fog": ((204, 206, 210), (226, 226, 230), "[|a grey ]fog"),
    "dusk": ((204, 178, 214), (236, 204, 206), "[dusk|an evening sky]"),
}
_HIDDEN = {"fog": ("white",), "sand": ("yellow", "white"), "dusk": ("white", "pink")}
_OPENERS = ("[The picture|This image] shows ", "Here [we see|there is] ", "")
_ADJECTIVES = "[bright |plain |neat ]"
_LINKS = (", next to ", " and [then |]", ", and [to its right|beside it] ")
_GROUND = (" on {ground}", ", all against {ground}")


def caption(rng: random.Random, split: Split) -> Picture:
    """Facts that an answer must name: colour and kind of each thing, in order, and no other."""
    name = rng.choice(tuple(GROUNDS))
    start, end, ground = GROUNDS[name]
    image = gradient((WIDTH, HEIGHT), start, end, rng)
    things = _things(name, rng)
    _place(image, things, end, rng)
    ask = functools.partial(_asked, things, ground)
    return Picture(name, finished(image, rng, 0.6), (), ask)


def _asked(things: list[tuple[str, str, bool]], ground: str, rng: random.Random) -> Asked:
    told = [_told(kind, colour, large, rng) for kind, colour, large in things]
    answer = expand(rng.choice(_OPENERS), rng) + told[0]
    for part in told[1:]:
        answer += expand(rng.choice(_LINKS), rng) + part
    if rng.random() < 0.7:
        answer += expand(rng.choice(_GROUND).format(ground=ground), rng)
    values = tuple(f"{colour} {kind}" for kind, colour, _ in things)
    return rng.choice(PROMPTS), sentence(answer), values


def _things(ground: str, rng: random.Random) -> list[tuple[str, str, bool]]:
    """Kind, colour, whether it is large; no colour that its ground hides."""
    colours = [colour for colour in COLOURS if colour not in _HIDDEN.get(ground, ())]
    kinds = rng.sample(tuple(NAMES), rng.randint(2, 4))
    return [(kind, rng.choice(colours), rng.random() < 0.5) for kind in kinds]


def _place(image: Image.Image, things: list, back: Colour, rng: random.Random) -> None:
    """Left to right, each in a column of its own."""
    draw = ImageDraw.Draw(image)
    column = WIDTH // len(things)
    for number, (kind, colour, large) in enumerate(things):
        side = rng.randint(34, 42) if large else rng.randint(18, 24)
        x = number * column + rng.randint(2, column - side - 2)
        y = rng.randint(4, HEIGHT - side - 4)
        draw_icon(draw, kind, (x, y, x + side, y + side), rng.choice(COLOURS[colour]), back)


def _told(kind: str, colour: str, large: bool, rng: random.Random) -> str:
    size = "[big |large ]" if large else "[small |little ]"
    adjective = _ADJECTIVES if rng.random() < 0.2 else ""
    hue = rng.choice(COLOUR_NAMES.get(colour, (colour,)))
    noun = rng.choice(NAMES[kind])
    words = expand(f"{size}{adjective}", rng) + f"{hue} {noun}"
    return ("an " if words[0] in "aeiou" else "a ") + words
