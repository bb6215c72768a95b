"""Labels of the characters under each visual token, and the layer that learns them."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw
from sglang.glance.reader.glyphs import CLASSES, FIRST, NOT_KNOWN, Glyphs, recorded
from sglang.glance.tasks import make
from sglang.glance.tasks.canvas import face
from torch.nn.functional import cross_entropy


def classes(text: str) -> list[int]:
    return [ord(character) - FIRST + 1 for character in text]


def test_a_cell_has_the_characters_whose_middles_lie_in_it() -> None:
    """DejaVu Sans Mono at 13 pixels: a character is 8 wide, and two fill a cell."""
    image = Image.new("RGB", (64, 48))
    with recorded() as drawn:
        ImageDraw.Draw(image).text((16, 17), "A7-", font=face("DejaVuSansMono", 13), fill="red")
    labels = drawn.labels(image)
    assert labels.shape == (12, 2)
    assert labels[5].tolist() == classes("A7")
    assert labels[6].tolist() == [*classes("-"), 0]
    assert labels.count_nonzero() == 3
    assert image.getcolors(1000) and len(image.getcolors(1000)) > 1  # it was written, too


def test_nothing_is_known_of_what_was_not_written_on_the_picture() -> None:
    with recorded() as drawn:
        sign = Image.new("RGB", (32, 16))
        ImageDraw.Draw(sign).text((0, 0), "A", font=face("DejaVuSans", 12), fill="red")
    assert (drawn.labels(Image.new("RGB", (64, 48))) == NOT_KNOWN).all()


def test_every_character_of_a_document_has_a_label() -> None:
    with recorded() as drawn:
        sample = make("document", "train", 3)
    text = "".join(text for _, _, text, _ in drawn.texts).replace(" ", "")
    found = [each - 1 + FIRST for each in drawn.labels(sample.image).flatten().tolist() if each]
    assert len(text) * 0.8 < len(found) <= len(text)
    assert set(map(chr, found)) <= set(text)
    assert ImageDraw.ImageDraw.text.__module__ == "PIL.ImageDraw"  # as it was


def test_the_loss_is_over_what_is_known() -> None:
    tower = torch.nn.Identity()
    glyphs = Glyphs(tower, 6)
    features = torch.randn(3, 6)
    tower(features)
    labels = torch.tensor([[5, 0], [NOT_KNOWN, NOT_KNOWN], [7, 9]])
    logits = glyphs.says(features).view(3, 2, CLASSES)
    wanted = [cross_entropy(logits[n, k], labels[n, k]) for n in (0, 2) for k in (0, 1)]
    torch.testing.assert_close(glyphs.loss(labels), sum(wanted) / 4)
    assert glyphs.loss(labels[1:2]).item() == 0
