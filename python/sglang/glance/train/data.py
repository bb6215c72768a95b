"""The two kinds of input rows, prompts and the target's own answers, checked before work starts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from PIL import Image

SHOWN_ERRORS = 10
T = TypeVar("T")
S = TypeVar("S")


class InputError(ValueError):
    """Rows or options that cannot be trained on; the message names each."""


class Prompt(msgspec.Struct, frozen=True):
    """A line of ``--data``; other keys (``answer``, ``task``) are not read. ``image``: a path,
    relative to the file."""

    prompt: str
    image: str | None = None


class Row(msgspec.Struct, frozen=True):
    """A line of ``rows.jsonl``: a prompt and the target's greedy answer, end token included.
    ``number``: the prompt's line in ``--data``. ``num_prompt``: prompt tokens as the server counted
    them. ``image``: a path, relative to the rows' file."""

    number: int
    prompt: str
    image: str | None
    num_prompt: int
    ids: list[int]
    text: str


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def each(items: Iterable[tuple[int, S]], path: Path, work: Callable[[S], T]) -> list[T]:
    """``work`` on every numbered item; whatever it refuses is reported together, line by line."""
    done, errors = [], []
    for number, item in items:
        try:
            done.append(work(item))
        except (ValueError, OSError) as error:
            errors.append(f"{path}, line {number}: {error}")
    if errors:
        more = len(errors) - SHOWN_ERRORS
        tail = [f"... and {more} more"] if more > 0 else []
        raise InputError("\n".join([*errors[:SHOWN_ERRORS], *tail]))
    return done


def read(path: Path, kind: type[T]) -> list[tuple[int, T]]:
    """Line numbers and rows of a JSONL file, with at least one row."""
    lines = list(numbered_lines(path))
    if not lines:
        raise InputError(f"{path} has no rows; expected one JSON object a line")
    decoded = each(lines, path, msgspec.json.Decoder(kind).decode)
    return [(number, row) for (number, _), row in zip(lines, decoded, strict=True)]


def picture(folder: Path, name: str) -> Image.Image:
    """The whole picture, decoded, so that a file cut short shows now."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"there is no image {path}; expected a path relative to {folder}")
    try:
        with Image.open(path) as image:
            image.load()
            return image.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"image {path} cannot be decoded: {error}") from error


def data_hash(folder: Path, rows: Sequence[Row]) -> str:
    """SHA-256 over prompts, answers and pictures, in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(msgspec.json.encode((row.prompt, row.ids)))
        if row.image is not None:
            digest.update((folder / row.image).read_bytes())
    return digest.hexdigest()


def relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())
