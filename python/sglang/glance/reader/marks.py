"""What stands under each visual token: a second lesson while the reader is trained.

A linear layer on the vision tower's output says two things of each token's cell: its first two
characters, or an icon's kind and colour. The layer is thrown away with the checkpoint; what it
leaves is a tower that has read the picture by itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..tasks import icons

NOT_KNOWN = -100
CELL = 16  # pixels: the patch times the merge
PLACES = 2
_CHARACTERS = [chr(code) for code in range(33, 127)]  # those that ink
# Class 0: nothing stands there.
CLASSES = {name: 1 + n for n, name in enumerate([*_CHARACTERS, *icons.NAMES, *icons.COLOURS])}
NUM_CLASSES = 1 + len(CLASSES)
_COLOURS = {shade: name for name, shades in icons.COLOURS.items() for shade in shades}


class Text(NamedTuple):
    """Written on a canvas of ``size`` at ``at``."""

    size: tuple[int, int]
    at: tuple[float, float]
    words: str
    font: ImageFont.FreeTypeFont

    def marks(self) -> Iterator[tuple[float, float, str]]:
        """Middle of each character that inks."""
        box = self.font.getbbox(self.words)
        y = self.at[1] + (box[1] + box[3]) / 2
        edges = [self.font.getlength(self.words[:n]) for n in range(len(self.words) + 1)]
        for (left, right), character in zip(itertools.pairwise(edges), self.words, strict=True):
            if character in CLASSES:
                yield self.at[0] + (left + right) / 2, y, character


class Icon(NamedTuple):
    """Drawn on a canvas of ``size`` within ``box``."""

    size: tuple[int, int]
    box: icons.Box
    kind: str
    colour: str


@dataclass
class Drawn:
    texts: list[Text] = field(default_factory=list)
    icons: list[Icon] = field(default_factory=list)

    def labels(self, image: Image.Image) -> Tensor:
        """``[cells, 2] int64``, row by row; all not known unless something was drawn on a canvas of
        the picture's own size."""
        columns, rows = image.width // CELL, image.height // CELL
        labels = torch.zeros(rows, columns, PLACES, dtype=torch.int64)
        texts = [each for each in self.texts if each.size == image.size]
        shown = [each for each in self.icons if each.size == image.size]
        if not texts and not shown:
            return labels.fill_(NOT_KNOWN).flatten(0, 1)
        for icon in shown:
            left, top, right, bottom = (round(edge / CELL) for edge in icon.box)
            told = torch.tensor([CLASSES[icon.kind], CLASSES[icon.colour]])
            labels[top : max(bottom, top + 1), left : max(right, left + 1)] = told
        cells: dict[tuple[int, int], list[str]] = {}
        for x, y, character in sorted(mark for text in texts for mark in text.marks()):
            cells.setdefault((int(y // CELL), int(x // CELL)), []).append(character)
        for (row, column), found in cells.items():
            if 0 <= row < rows and 0 <= column < columns:
                told = [CLASSES[character] for character in found[:PLACES]]
                labels[row, column] = torch.tensor([*told, 0][:PLACES])
        return labels.flatten(0, 1)


@contextlib.contextmanager
def recorded() -> Iterator[Drawn]:
    """Everything that is written with Pillow, and every icon, meanwhile."""
    drawn, write, draw_each = Drawn(), ImageDraw.ImageDraw.text, dict(icons._DRAWN)

    def text(canvas: ImageDraw.ImageDraw, xy: tuple, words: str, **how: object) -> None:
        drawn.texts.append(Text(canvas.im.size, xy, words, how["font"]))
        write(canvas, xy, words, **how)

    def icon(kind: str, canvas: ImageDraw.ImageDraw, box: icons.Box, fill, back) -> None:
        drawn.icons.append(Icon(canvas.im.size, box, kind, _COLOURS[fill]))
        draw_each[kind](canvas, box, fill, back)

    ImageDraw.ImageDraw.text = text
    icons._DRAWN.update({kind: functools.partial(icon, kind) for kind in draw_each})
    try:
        yield drawn
    finally:
        ImageDraw.ImageDraw.text = write
        icons._DRAWN.update(draw_each)


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
        """Mean cross-entropy in nats over the places of ``labels [cells, 2]`` that are known."""
        known = labels[:, 0] != NOT_KNOWN
        if not known.any():
            return self.says.weight.new_zeros(())
        logits = self.says(self._features[known]).unflatten(-1, (PLACES, NUM_CLASSES))
        return cross_entropy(logits.flatten(0, 1).float(), labels[known].flatten())
