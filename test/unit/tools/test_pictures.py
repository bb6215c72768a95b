"""The pixels that are sent are those that the trainer reads, and those of SGLang's own loader."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.pictures import encode, form
from builders.rows import KINDS, awkward, write_pictures
from PIL import Image
from sglang.glance.prompts.pictures import content, picture, sendable
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.shipped import READER
from sglang.srt.utils.common import load_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    for name, (image, saved) in awkward().items():
        image.save(folder / name, **saved)
    return folder


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(READER)


def pixels(prompter: Prompter, image: Image.Image) -> torch.Tensor:
    """As the target sees them, behind its own processor."""
    return prompter.processor.image_processor(images=[image], return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("name", [*KINDS, *dict.fromkeys(awkward())])
def test_the_same_pixels_everywhere(folder: Path, prompter: Prompter, name: str) -> None:
    path = folder / name
    url = sendable(str(path))
    data = content(url)
    assert url.startswith("data:image/png;base64,")
    with Image.open(io.BytesIO(data)) as sent:
        assert (sent.format, sent.mode) == ("PNG", "RGB")
    ours = picture(str(path))
    assert ours.mode == "RGB" and len(set(ours.tobytes())) > 1
    served, _ = load_image(url)
    raw, _ = load_image(path.read_bytes())
    assert np.array_equal(np.asarray(served.convert("RGB")), np.asarray(ours))
    assert np.array_equal(np.asarray(raw.convert("RGB")), np.asarray(ours))
    seen = pixels(prompter, ours)
    assert torch.equal(seen, pixels(prompter, served)) and torch.equal(seen, pixels(prompter, raw))


def test_a_plain_png_is_sent_as_it_is(folder: Path) -> None:
    path = folder / "plain.png"
    assert content(sendable(str(path))) == path.read_bytes()
    url = encode(form(1))
    assert sendable(url) == url
    assert content(sendable(encode(form(1), "JPEG"))).startswith(b"\x89PNG")


def test_an_address_stays_one() -> None:
    assert sendable("https://host/a.jpg") == "https://host/a.jpg"


def test_what_is_no_picture_is_said(folder: Path) -> None:
    whole = (folder / "photo.jpg").read_bytes()
    (folder / "short.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.png").write_text("a picture")
    deep = np.arange(96 * 64, dtype=np.uint16).reshape(64, 96)
    Image.fromarray(deep).save(folder / "deep.png")
    Image.fromarray(deep.astype(np.float32)).save(folder / "float.tiff")
    for name, said in [
        ("none.png", "none.png cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
        ("short.jpg", "short.jpg cannot be decoded: Truncated File Read"),
        ("text.png", "text.png is of no kind that PIL reads"),
        ("deep.png", r"deep.png cannot be decoded: mode I;16: expected 8 bits a channel"),
        ("float.tiff", "float.tiff cannot be decoded: mode F"),
    ]:
        with pytest.raises(ValueError, match=said):
            picture(str(folder / name))
    for url, said in [
        ("https://host/a.jpg", "addresses are not fetched here"),
        ("data:image/png,xyz", "expected data:image/KIND;base64,DATA"),
        ("data:image/png;base64,é", "is not base64"),
        ("data:image/png;base64," + "A" * 400, r"A\.\.\. is of no kind that PIL reads"),
    ]:
        with pytest.raises(ValueError, match=said):
            picture(url)
