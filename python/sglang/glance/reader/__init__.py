"""``glance reader``: train the small vision-language model that is shipped."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    from .cli import main as run

    return run(argv)
