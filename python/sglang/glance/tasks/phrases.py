"""Free phrasing: ``[a|b|c]`` stands for any one of its parts, and may be nested."""

from __future__ import annotations

import random
import re

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def expand(template: str, rng: random.Random) -> str:
    """``template`` with every choice made. Raises ``ValueError`` if one is not closed."""
    text = template
    while match := _INNERMOST.search(text):
        text = text[: match.start()] + rng.choice(match[1].split("|")) + text[match.end() :]
    if "[" in text or "]" in text:
        raise ValueError(f"got {template!r}; expected every [ to be closed by a ]")
    return text


def joined(parts: list[str], rng: random.Random) -> str:
    """``a, b and c``, with one of several joints a gap."""
    text = parts[0]
    for number, part in enumerate(parts[1:], 2):
        last = number == len(parts)
        text += expand("[ and | and then |, and ]" if last else "[, |, then |; ]", rng) + part
    return text


def sentence(text: str) -> str:
    """First letter large, one full stop."""
    return text[0].upper() + text[1:].rstrip(".") + "."
