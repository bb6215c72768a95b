"""Rows with the target's own answers, and what they are known by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from sglang.glance.prompts.pictures import content
from sglang.glance.prompts.rows import Prompt, chat, moved


class Row(Prompt, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``rows.jsonl``: a prompt and the target's greedy answer, end token included.
    ``number``: the prompt's line in ``--data``. ``num_prompt``: prompt tokens as the server counted
    them. Paths of pictures are relative to the rows' file."""

    number: int
    num_prompt: int
    ids: list[int]
    text: str


def kept(prompt: Prompt, folder: Path) -> dict:
    """The prompt's fields in a row of ``folder / "rows.jsonl"``; the task is not kept."""
    here = moved(prompt, lambda name: relative(Path(name), folder))
    return {name: getattr(here, name) for name in Prompt.__struct_fields__} | {"task": None}


def data_hash(rows: Sequence[Row]) -> str:
    """SHA-256 over prompts, answers and pictures, in order; wherever the pictures lie."""
    digest = hashlib.sha256()
    for row in rows:
        said = row.prompt or chat(row, lambda name: {"type": "image"})
        digest.update(msgspec.json.encode((said, row.ids)))
        for name in row.pictures:
            digest.update(content(name))
    return digest.hexdigest()


def relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())
