"""Labels of the characters under each visual token, and the layer that learns them."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw
from sglang.glance.reader.marks import CLASSES, NOT_KNOWN, NUM_CLASSES, Marks, recorded
from sglang.glance.tasks import icons, make
from sglang.glance.tasks.canvas import face
from sglang.glance.tasks.icons import COLOURS, draw_icon
from torch.nn.functional import cross_entropy


def classes(text: str) -> list[int]:
    return [CLASSES[character] for character in text]


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
    text = "".join(each.words for each in drawn.texts).replace(" ", "")
    found = [each for each in drawn.labels(sample.image).flatten().tolist() if each]
    assert len(text) * 0.8 < len(found) <= len(text)
    assert set(found) <= set(classes(text))
    assert ImageDraw.ImageDraw.text.__module__ == "PIL.ImageDraw"  # as it was


def test_an_icon_fills_the_cells_of_its_box() -> None:
    image = Image.new("RGB", (64, 48))
    with recorded() as drawn:
        draw_icon(ImageDraw.Draw(image), "boat", (15, 17, 50, 47), COLOURS["pink"][1], (0, 0, 0))
    labels = drawn.labels(image).view(3, 4, 2)
    assert (labels[1:, 1:3] == torch.tensor([CLASSES["boat"], CLASSES["pink"]])).all()
    assert labels.count_nonzero() == 8
    assert len(image.getcolors(1000)) > 1 and not hasattr(icons._DRAWN["boat"], "args")


def test_the_loss_is_over_what_is_known() -> None:
    tower = torch.nn.Identity()
    marks = Marks(tower, 6)
    features = torch.randn(3, 6)
    tower(features)
    labels = torch.tensor([[5, 0], [NOT_KNOWN, NOT_KNOWN], [7, 9]])
    logits = marks.says(features).view(3, 2, NUM_CLASSES)
    wanted = [cross_entropy(logits[n, k], labels[n, k]) for n in (0, 2) for k in (0, 1)]
    torch.testing.assert_close(marks.loss(labels), sum(wanted) / 4)
    assert marks.loss(labels[1:2]).item() == 0
