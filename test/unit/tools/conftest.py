"""Hand-made rows: small enough that every figure can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglang.glance.measure.figures import PHASES, Row


def _row(arm: str = "plain", **given: object) -> Row:
    """A request of 5 tokens, 0.5 s to its first and 0.4 s from there to its last."""
    known = {
        "dtype": "float32",
        "batch": 1,
        "repeat": 0,
        "prompt": 0,
        "task": "document",
        "ids": [1, 2, 3, 4, 5],
        "rounds": 0,
        "first_s": 0.5,
        "total_s": 0.9,
        "group": 0,
        "group_s": given.get("total_s", 0.9),
    }
    return Row(arm=arm, **{**known, **given})


def _laps(**ms: float) -> dict[str, float]:
    return {phase: ms.get(phase, 0.0) for phase in PHASES}


@pytest.fixture
def make_row() -> Callable[..., Row]:
    return _row


@pytest.fixture
def laps() -> Callable[..., dict[str, float]]:
    return _laps


@pytest.fixture
def two_arms() -> list[Row]:
    """Prompt 0 (document): GLANCE decodes 4 tokens in 2 rounds and 0.1 s against 0.4 s.
    Prompt 1 (caption): 2 tokens in 2 rounds and 0.3 s against 0.2 s, a loss."""
    split = _laps(draft=10, tree=1, verify=30, accept=1, commit=2)
    caption = {"prompt": 1, "task": "caption", "ids": [7, 8, 9], "group": 1}
    return [
        _row(),
        _row("glance", rounds=2, total_s=0.6, laps_ms=split, logged=2),
        _row(total_s=0.7, **caption),
        _row("glance", rounds=2, total_s=0.8, laps_ms=split, logged=2, **caption),
    ]
