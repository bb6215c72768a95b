"""The requests of the exactness tests: shipped pictures, made-up pictures, texts."""

from __future__ import annotations

import json
from pathlib import Path

from builders.pictures import SIZES, encode, form, shapes
from sglang.glance.prompts.pictures import sendable

TEXTS = (
    "Hello.",
    "What is the Total?",
    "Count: 1, 2, 3, 4, 5, 6,",
    "Describe a big red circle beside a small blue box.",
    "Name: PARIS\nTotal: 12.50\nRead all lines.",
    "MON = 12\nTUE = 34\nWED = 56\nList the chart values.",
    "abc abc abc abc abc abc abc abc abc abc abc abc",
    "0123456789 " * 12,
    "Say nothing. " * 8,
)


def chat(prompt: str, images: int = 0) -> str:
    """The shipped reader's chat format, written out."""
    vision = "<|vision_start|><|image_pad|><|vision_end|>" * images
    return f"<|im_start|>user\n{vision}{prompt}<|im_end|>\n<|im_start|>assistant\n"


CONTEXT = 4096  # the shipped reader's positions; the host ends an answer two tokens short of it
TAKEN = 15  # tokens of a chat prompt around a text of one-token words
PICTURE = 98  # of a shipped picture, and what is around it


def near_the_end(left: int, image: str | None = None) -> dict:
    """A prompt that leaves about ``left`` tokens of the context for the answer."""
    taken = TAKEN if image is None else TAKEN + PICTURE
    words = chat("word " * (CONTEXT - taken - left), images=int(image is not None))
    return {"text": words, "images": [image] if image else []}


def picture_prompts(folder: Path) -> list[dict]:
    """The pictures of a folder with their questions, as ``/generate`` requests."""
    rows = map(json.loads, (folder / "prompts.jsonl").read_text().splitlines())
    return [
        picture(row["prompt"], sendable(str(folder / row["image"])))
        | {"task": row["task"], "values": row["values"]}
        for row in rows
    ]


def picture(prompt: str, *images: str) -> dict:
    return {"text": chat(prompt, images=len(images)), "images": list(images)}


def made_up_pictures() -> list[dict]:
    """Sizes, colour modes and file kinds, two pictures in a request, one picture twice."""
    first, second = encode(form(1)), encode(form(2))
    return [
        *(picture("Read all lines.", encode(form(10 + i, size))) for i, size in enumerate(SIZES)),
        picture("Describe the image.", encode(shapes(30, mode="RGBA"))),
        picture("Describe the image.", encode(shapes(31, mode="L"))),
        picture("What is in the picture?", encode(shapes(32, mode="P"))),
        picture("What is in the picture?", encode(shapes(33, mode="CMYK"), "JPEG")),
        picture("Read all lines.", first, second),
        picture("Describe the image.", encode(shapes(34)), encode(shapes(35, (64, 64)))),
        picture("Read all lines.", first, first),
    ]


def texts() -> list[dict]:
    return [{"text": chat(text)} for text in TEXTS] + [{"text": "Order: 54287\nTotal:"}]


def exactness_prompts(pictures: Path) -> list[dict]:
    """42 requests, kinds interleaved so that any 8 neighbours make a mixed batch."""
    kinds = [picture_prompts(pictures), made_up_pictures(), texts()]
    longest = max(map(len, kinds))
    return [kind[i] for i in range(longest) for kind in kinds if i < len(kind)]
