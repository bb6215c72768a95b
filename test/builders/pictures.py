"""Deterministic pictures of every kind the image processor must take, as data URLs."""

from __future__ import annotations

import base64
import io
import random

from PIL import Image, ImageDraw

COLOURS = ("red", "navy", "orange", "purple", "darkgreen", "black")
# Smallest and largest the shipped processor leaves unscaled, very flat, very tall, ordinary.
SIZES = ((16, 16), (256, 256), (256, 32), (32, 256), (160, 96), (96, 160), (130, 70))


def form(seed: int, size: tuple[int, int] = (160, 96)) -> Image.Image:
    """A few lines of `Word: digits` on a light ground."""
    rng = random.Random(seed)
    image = Image.new("RGB", size, (rng.randrange(220, 256),) * 3)
    draw = ImageDraw.Draw(image)
    for line in range(rng.randrange(2, 5)):
        word = "".join(rng.choices("ABCDEFGHKLMNOPRSTU", k=rng.randrange(2, 6)))
        draw.text((6, 5 + 20 * line), f"{word}: {rng.randrange(10**5)}", fill="black")
    return image


def shapes(seed: int, size: tuple[int, int] = (160, 96), mode: str = "RGB") -> Image.Image:
    """Three coloured boxes and discs, converted to ``mode``."""
    rng = random.Random(seed)
    image = Image.new("RGBA", size, (255, 255, 255, 255))
    draw = ImageDraw.Draw(image)
    for _ in range(3):
        x, y = rng.randrange(size[0]), rng.randrange(size[1])
        box = (x, y, x + rng.randrange(8, 60), y + rng.randrange(8, 60))
        rng.choice((draw.ellipse, draw.rectangle))(box, fill=rng.choice(COLOURS))
    if mode == "RGBA":  # half of it see-through
        image.putalpha(Image.linear_gradient("L").resize(size))
    return image.convert(mode)


def encode(image: Image.Image, kind: str = "PNG") -> str:
    data = io.BytesIO()
    image.save(data, kind)
    # A bare base64 JPEG starts with a slash, which SGLang takes for a path.
    return f"data:image/{kind.lower()};base64,{base64.b64encode(data.getvalue()).decode()}"
