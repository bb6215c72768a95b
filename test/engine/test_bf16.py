"""bfloat16: tree verify and plain decoding round alike, so the tokens are the same there too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.floors import ACCEPT_LEN_READ
from harness import (
    READER,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    booting,
    glance_flags,
    start,
    tokens_per_round,
)

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}
FEW_ALONE = 10  # asked one by one; `--whole` asks all


@pytest.fixture(scope="module")
def plain_bf16(logs: Path) -> Iterator[Plain]:
    with booting(READER, logs / "plain-bf16.log", "--dtype", "bfloat16") as server:
        yield Plain(server)


@pytest.fixture(scope="module")
def glance_bf16(logs: Path, plain_bf16: Plain) -> Iterator[Server]:
    """Starts beside the plain one."""
    with start(READER, logs / "glance-bf16.log", *glance_flags(dtype="bfloat16")) as server:
        yield server


def test_eight_at_a_time(glance_bf16: Server, plain_bf16: Plain, prompts: list[dict]) -> None:
    answers = glance_bf16.generate_all(prompts, parallel=8, **LENGTH)
    assert_identical(answers, plain_bf16.answers(prompts, **LENGTH))


def test_one_by_one_from_the_cache(
    glance_bf16: Server, plain_bf16: Plain, prompts: list[dict], request: pytest.FixtureRequest
) -> None:
    alone = prompts if request.config.getoption("--whole") else prompts[:FEW_ALONE]
    answers = glance_bf16.generate_all(alone, parallel=1, **LENGTH)
    assert_identical(answers, plain_bf16.answers(alone, **LENGTH))


def test_acceptance(glance_bf16: Server, questions: list[dict]) -> None:
    read = [q for q in questions if q["task"] in ("document", "chart")]
    assert tokens_per_round(glance_bf16.generate_all(read, parallel=1)) >= ACCEPT_LEN_READ


def test_no_slot_is_lost(glance_bf16: Server) -> None:
    assert_no_slot_lost(glance_bf16)
