"""Writes a split as JSONL and PNG, and contact sheets for people to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from PIL import Image
from sglang.glance.cli.files import check_folder
from sglang.glance.cli.options import Parser
from sglang.glance.cli.progress import bar
from sglang.glance.cli.terminal import messages

from . import SPLITS, TASKS, make
from .sample import HEIGHT, WIDTH, Sample

SHEET_COLUMNS, SHEET_ROWS, GAP = 6, 5, 6


class Line(msgspec.Struct):
    """A row of ``prompts.jsonl``. ``image``: a path relative to the file."""

    image: str
    prompt: str
    answer: str
    task: str
    values: list[str]


def write(folder: Path, split: str, count: int, start: int = 0) -> Path:
    """``count`` samples a task from index ``start`` on. Returns the JSONL's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prompts.jsonl"
    pairs = [(task, index) for index in range(start, start + count) for task in TASKS]
    with path.open("wb") as file, bar(messages(), f"{split} samples", len(pairs)) as advance:
        for task, index in pairs:
            sample = make(task, split, index)
            name = f"{index:06d}-{task}.png"
            sample.image.save(folder / name)
            row = Line(name, sample.prompt, sample.answer, task, list(sample.values))
            file.write(msgspec.json.encode(row) + b"\n")
            advance()
    return path


def sheet(samples: Sequence[Sample]) -> Image.Image:
    """Pictures side by side, portrait ones in cells as high as they are."""
    cell = (WIDTH + GAP, max(WIDTH, HEIGHT) + GAP)
    rows = -(-len(samples) // SHEET_COLUMNS)
    image = Image.new("RGB", (SHEET_COLUMNS * cell[0] + GAP, rows * cell[1] + GAP), (120, 120, 120))
    for number, sample in enumerate(samples):
        row, column = divmod(number, SHEET_COLUMNS)
        image.paste(sample.image, (column * cell[0] + GAP, row * cell[1] + GAP))
    return image


def sheets(folder: Path, split: str) -> Iterator[Path]:
    """One contact sheet a task."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        path = folder / f"sheet-{task}.png"
        sheet([make(task, split, index) for index in range(SHEET_COLUMNS * SHEET_ROWS)]).save(path)
        yield path


def main(argv: Sequence[str]) -> int:
    parser = Parser("tasks", __doc__)
    parser.add_argument("folder", type=Path, help="where prompts.jsonl, pictures and sheets go")
    parser.add_argument("--split", choices=SPLITS, default="heldout", help="seeds of their own")
    parser.add_argument("--count", type=int, default=100, help="samples a task")
    parser.add_argument("--start", type=int, default=0, help="index of the first")
    args = parser.parse_args(argv)
    if args.count < 1 or args.start < 0:
        got = f"got --count {args.count} --start {args.start}"
        parser.error(f"{got}; expected at least 1 sample from an index of at least 0")
    check_folder("folder", args.folder)
    print(write(args.folder, args.split, args.count, args.start))
    for path in sheets(args.folder, args.split):
        print(path)
    return 0
