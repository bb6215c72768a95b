"""Which characters stand under each visual token: a second lesson while the reader is trained.

A linear layer on the vision tower's output says the first two characters in each token's cell. It
is thrown away with the checkpoint; what it leaves is a tower that has read the picture by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NOT_KNOWN = -100
CELL = 16  # pixels: the patch times the merge
PLACES = 2  # characters of a cell, by what is left of what
FIRST, LAST = 33, 126  # the characters that ink; 0 says there is none
CLASSES = LAST - FIRST + 2


@dataclass
class Drawn:
    """What was written on canvases: size of the canvas, place, text, font."""

    texts: list[tuple[tuple[int, int], tuple[float, float], str, ImageFont.FreeTypeFont]] = field(
        default_factory=list
    )

    def labels(self, image: Image.Image) -> Tensor:
        """``[cells, 2] int64``, row by row; all not known unless text was written on a canvas of
        the picture's own size."""
        columns, rows = image.width // CELL, image.height // CELL
        own = [(at, text, font) for size, at, text, font in self.texts if size == image.size]
        if not own:
            return torch.full((rows * columns, PLACES), NOT_KNOWN)
        cells: dict[int, list[tuple[float, int]]] = {}
        for (left, top), text, font in own:
            box = font.getbbox(text)
            row = int(top + (box[1] + box[3]) / 2) // CELL
            for place, character in enumerate(text):
                if not FIRST <= ord(character) <= LAST:
                    continue
                middle = (font.getlength(text[:place]) + font.getlength(text[: place + 1])) / 2
                column = int(left + middle) // CELL
                if 0 <= column < columns and 0 <= row < rows:
                    cell = cells.setdefault(row * columns + column, [])
                    cell.append((left + middle, ord(character) - FIRST + 1))
        labels = torch.zeros(rows * columns, PLACES, dtype=torch.int64)
        for cell, found in cells.items():
            for place, (_, character) in enumerate(sorted(found)[:PLACES]):
                labels[cell, place] = character
        return labels


@contextlib.contextmanager
def recorded() -> Iterator[Drawn]:
    """Everything that Pillow writes meanwhile."""
    drawn, write = Drawn(), ImageDraw.ImageDraw.text

    def text(draw: ImageDraw.ImageDraw, xy: tuple, words: str, **how: object) -> None:
        drawn.texts.append((draw.im.size, xy, words, how["font"]))
        write(draw, xy, words, **how)

    ImageDraw.ImageDraw.text = text
    try:
        yield drawn
    finally:
        ImageDraw.ImageDraw.text = write


class Glyphs(nn.Module):
    """The layer, on what ``tower``, the vision tower's last module, gave in its last pass."""

    def __init__(self, tower: nn.Module, hidden: int) -> None:
        super().__init__()
        self.says = nn.Linear(hidden, PLACES * CLASSES)
        tower.register_forward_hook(self._keep)
        self._features: Tensor | None = None

    def _keep(self, module: nn.Module, given: tuple, features: Tensor) -> None:
        self._features = features

    def loss(self, labels: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the places of ``labels [cells, 2]`` that are known."""
        known = labels[:, 0] != NOT_KNOWN
        if not known.any():
            return self.says.weight.new_zeros(())
        logits = self.says(self._features[known]).unflatten(-1, (PLACES, CLASSES))
        return cross_entropy(logits.flatten(0, 1).float(), labels[known].flatten())
