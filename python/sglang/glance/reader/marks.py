"""What stands under each visual token: a second lesson while the reader is trained.

A linear layer on the vision tower's output says two things of each token's cell: its first two
characters, or an icon's kind and colour. The layer is thrown away with the checkpoint; what it
leaves is a tower that has read the picture by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from sglang.glance.tasks import icons
from sglang.glance.tasks.trace import Character, Icon, Mark
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CELL = 16  # pixels: the patch times the merge
PLACES = 2
_CHARACTERS = [chr(code) for code in range(33, 127)]  # those that ink
# Class 0: nothing stands there.
CLASSES = {name: 1 + n for n, name in enumerate([*_CHARACTERS, *icons.NAMES, *icons.COLOURS])}
NUM_CLASSES = 1 + len(CLASSES)


def labelled(image: Image.Image, marks: Sequence[Mark]) -> Tensor:
    """``[cells, 2] int64``, row by row: an icon's kind and colour in every cell of its box, and the
    first two characters whose middles lie in the cell."""
    columns, rows = image.width // CELL, image.height // CELL
    labels = torch.zeros(rows, columns, PLACES, dtype=torch.int64)
    for icon in (mark for mark in marks if isinstance(mark, Icon)):
        left, top, right, bottom = (round(edge / CELL) for edge in icon.box)
        told = torch.tensor([CLASSES[icon.kind], CLASSES[icon.colour]])
        labels[top : max(bottom, top + 1), left : max(right, left + 1)] = told
    cells: dict[tuple[int, int], list[int]] = {}
    for x, y, text in sorted(mark for mark in marks if isinstance(mark, Character)):
        if text in CLASSES:
            cells.setdefault((int(y // CELL), int(x // CELL)), []).append(CLASSES[text])
    for (row, column), found in cells.items():
        if 0 <= row < rows and 0 <= column < columns:
            labels[row, column] = torch.tensor([*found, 0][:PLACES])
    return labels.flatten(0, 1)


class Marks(nn.Module):
    """The layer, on what ``tower``, the vision tower's last module, gave in its last pass."""

    def __init__(self, tower: nn.Module, hidden: int) -> None:
        super().__init__()
        self.says = nn.Linear(hidden, PLACES * NUM_CLASSES)
        tower.register_forward_hook(self._keep)
        self._features: Tensor | None = None

    def _keep(self, module: nn.Module, given: tuple, features: Tensor) -> None:
        self._features = features

    def loss(self, labels: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the places of ``labels [cells, 2]``."""
        logits = self.says(self._features).unflatten(-1, (PLACES, NUM_CLASSES))
        return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
