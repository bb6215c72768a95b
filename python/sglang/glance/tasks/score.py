"""Whether an answer holds the right values, however it is phrased."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .icons import COLOUR_NAMES, COLOURS, NAMES

_SYNONYMS = {
    other: first
    for names in (NAMES, COLOUR_NAMES)
    for first, others in names.items()
    for other in others
}
_THING = re.compile(rf"\b({'|'.join(COLOURS)}) ({'|'.join(NAMES)})\b")


def normalised(text: str) -> str:
    """Upper case, single spaces, no mark at the end of a word."""
    words = (word.strip(".,;:()*=!?") for word in text.upper().split())
    return " ".join(word for word in words if word and word != "-")


def right(task: str, answer: str, values: Sequence[str]) -> bool:
    """All of ``values`` whole and in their order; for a caption exactly its things, in order."""
    if task == "caption":
        return things(answer) == list(values)
    rest = f" {normalised(answer)} "
    for value in values:
        _, found, rest = rest.partition(f" {normalised(value)} ")
        if not found:
            return False
        rest = f" {rest}"
    return True


def things(answer: str) -> list[str]:
    """``colour kind`` of everything a caption names, synonyms evened out."""
    words = re.findall(r"[a-z]+", answer.lower())
    text = " ".join(_SYNONYMS.get(word, word) for word in words)
    return [" ".join(pair) for pair in _THING.findall(text)]
