"""Rows of one's own: every kind of picture file, and every shape of a row."""

from __future__ import annotations

import json
from pathlib import Path

from builders.pictures import encode, form, shapes
from PIL import Image

# Name of the file: the mode it is saved in.
KINDS = {
    "plain.png": "RGB",
    "photo.jpg": "RGB",
    "web.webp": "RGB",
    "scan.tiff": "RGB",
    "grey.jpg": "L",
    "cmyk.jpg": "CMYK",
    "see-through.png": "RGBA",
}


def write_pictures(folder: Path) -> None:
    for number, (name, mode) in enumerate(KINDS.items()):
        shapes(number, (96, 64), mode).save(folder / name)


def write_rows(folder: Path) -> Path:
    """``prompts.jsonl`` of a picture of each kind and a row of each shape; no ``values``, and no
    ``task`` but one."""
    folder.mkdir(exist_ok=True)
    write_pictures(folder)
    rows: list[dict] = [{"prompt": "Describe the image.", "image": name} for name in KINDS]
    rows[0]["task"] = "caption"
    read = {"type": "text", "text": "Read all lines."}
    rows += [
        {"prompt": "What is in the picture?", "images": ["photo.jpg", "plain.png"]},
        {"prompt": "Read all lines.", "image": encode(form(3), "JPEG")},
        {"prompt": "Count: 1, 2, 3, 4, 5, 6,"},
        {
            "messages": [
                {"role": "system", "content": "Answer in one line."},
                {"role": "user", "content": "Hello."},
                {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
                {"role": "user", "content": [{"type": "image", "image": "scan.tiff"}, read]},
            ]
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Compare"},
                        {"type": "image_url", "image_url": {"url": "web.webp"}},
                        {"type": "image_url", "image_url": {"url": encode(shapes(9, (64, 64)))}},
                    ],
                }
            ]
        },
    ]
    path = folder / "prompts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return path


def awkward() -> dict[str, tuple[Image.Image, dict]]:
    """Files that a plain conversion could get wrong, with how they are saved."""
    rotated = Image.Exif()
    rotated[0x0112] = 6  # turn by 90 degrees to see it upright
    colours = shapes(5).convert("P")
    return {
        "rotated.jpg": (shapes(1), {"exif": rotated}),
        "rotated.png": (shapes(1), {"exif": rotated}),
        "palette.png": (colours, {}),
        "palette-see-through.png": (colours, {"transparency": 0}),
        "colour-see-through.png": (shapes(2), {"transparency": (255, 255, 255)}),
        "grey-see-through.png": (shapes(3, mode="RGBA").convert("LA"), {}),
        "black-and-white.png": (shapes(4).convert("1"), {}),
        "cmyk.tiff": (shapes(6, mode="CMYK"), {}),
        "ycbcr.tiff": (shapes(6).convert("YCbCr"), {}),
        "moving.gif": (shapes(7), {"save_all": True, "append_images": [shapes(8)]}),
        "moving.png": (shapes(7), {"save_all": True, "append_images": [shapes(8)]}),
    }
