"""Labels of what stands under each visual token, and the layer that learns them."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw
from sglang.glance.reader.marks import CLASSES, NUM_CLASSES, Marks, labelled
from sglang.glance.tasks import trace
from sglang.glance.tasks.canvas import face
from sglang.glance.tasks.icons import COLOURS, draw_icon
from torch.nn.functional import cross_entropy


def classes(text: str) -> list[int]:
    return [CLASSES[character] for character in text]


def test_a_cell_has_the_characters_whose_middles_lie_in_it() -> None:
    """DejaVu Sans Mono at 13 pixels: a character is 8 wide, and two fill a cell."""
    image = Image.new("RGB", (64, 48))
    with trace.listening() as marks:
        font = face("DejaVuSansMono", 13)
        trace.write(ImageDraw.Draw(image), (16, 17), "A7-", font, (255, 0, 0))
    labels = labelled(image, marks)
    assert labels.shape == (12, 2)
    assert labels[5].tolist() == classes("A7")
    assert labels[6].tolist() == [*classes("-"), 0]
    assert labels.count_nonzero() == 3


def test_what_stands_outside_and_what_does_not_ink_has_no_label() -> None:
    image = Image.new("RGB", (32, 16))
    marks = [trace.Character(x, 8, text) for x, text in ((-4, "A"), (40, "B"), (8, " "), (9, "é"))]
    assert not labelled(image, marks).any()


def test_an_icon_fills_the_cells_of_its_box() -> None:
    image = Image.new("RGB", (64, 48))
    with trace.listening() as marks:
        draw_icon(ImageDraw.Draw(image), "boat", (15, 17, 50, 47), COLOURS["pink"][1], (0, 0, 0))
    labels = labelled(image, marks).view(3, 4, 2)
    assert (labels[1:, 1:3] == torch.tensor([CLASSES["boat"], CLASSES["pink"]])).all()
    assert labels.count_nonzero() == 8


def test_the_loss_is_the_mean_over_both_places() -> None:
    tower = torch.nn.Identity()
    marks = Marks(tower, 6)
    features = torch.randn(2, 6)
    tower(features)
    labels = torch.tensor([[5, 0], [7, 9]])
    logits = marks.says(features).view(2, 2, NUM_CLASSES)
    wanted = [cross_entropy(logits[n, k], labels[n, k]) for n in (0, 1) for k in (0, 1)]
    torch.testing.assert_close(marks.loss(labels), sum(wanted) / 4)
