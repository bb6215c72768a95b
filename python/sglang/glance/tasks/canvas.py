"""Pictures: faces, colours, backgrounds, noise, and text placed with jitter."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Colour = tuple[int, int, int]

# Free faces that matplotlib brings: DejaVu and STIX.
FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold",
    "DejaVuSerif", "DejaVuSerif-Bold", "STIXGeneral", "STIXGeneralBol",
)  # fmt: skip
_LARGER = {"STIXGeneral": 2, "STIXGeneralBol": 2}  # their letters are smaller at the same size


@functools.cache
def _folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@functools.cache
def face(name: str, size: int) -> ImageFont.FreeTypeFont:
    """``size`` in pixels, evened out between faces."""
    return ImageFont.truetype(str(_folder() / f"{name}.ttf"), size + _LARGER.get(name, 0))


def dark(rng: random.Random) -> Colour:
    return tuple(rng.randint(0, 90) for _ in range(3))


def light(rng: random.Random) -> Colour:
    return tuple(rng.randint(205, 255) for _ in range(3))


def text_size(text: str, font: ImageFont.FreeTypeFont) -> tuple[int, int]:
    """Width and height in pixels of the inked box."""
    left, top, right, bottom = font.getbbox(text)
    return int(right - left), int(bottom - top)


def fitting(text: str, names: tuple[str, ...], size: int, width: int, rng: random.Random):
    """A face from ``names`` at ``size`` or the largest below it at which ``text`` fits."""
    name = rng.choice(names)
    while size > 9 and text_size(text, face(name, size))[0] > width:
        size -= 1
    return face(name, size)


def page(size: tuple[int, int], rng: random.Random) -> Image.Image:
    """Paper: a light colour, at times with a gradient or rules."""
    image = Image.new("RGB", size, light(rng))
    kind = rng.randrange(4)
    if kind == 0:
        image.paste(gradient(size, light(rng), light(rng), rng))
    elif kind == 1:
        draw = ImageDraw.Draw(image)
        step, shade = rng.randint(12, 22), tuple(rng.randint(185, 225) for _ in range(3))
        for y in range(rng.randint(4, step), size[1], step):
            draw.line([(0, y), (size[0], y)], fill=shade)
    return image


def gradient(size: tuple[int, int], start: Colour, end: Colour, rng: random.Random) -> Image.Image:
    """From ``start`` to ``end``, left to right or top to bottom."""
    width, height = size
    ramp = np.linspace(0.0, 1.0, width if rng.random() < 0.5 else height)
    weights = ramp[None, :] if len(ramp) == width else ramp[:, None]
    weights = np.broadcast_to(weights, (height, width))[..., None]
    pixels = np.asarray(start) * (1 - weights) + np.asarray(end) * weights
    return Image.fromarray(pixels.astype(np.uint8))


def finished(image: Image.Image, rng: random.Random, strength: float = 1.0) -> Image.Image:
    """Noise of a random strength, at times a light blur, as of a scanner or a camera."""
    if rng.random() < 0.15:
        image = image.filter(ImageFilter.GaussianBlur(0.4))
    sigma = rng.choice((0.0, 3.0, 6.0)) * strength
    if not sigma:
        return image
    noise = np.random.default_rng(rng.getrandbits(32))
    noise = noise.normal(0.0, sigma, (image.height, image.width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
