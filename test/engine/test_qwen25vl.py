"""The other family: a tiny random Qwen2.5-VL, whose windowed vision tower and sectioned (not
interleaved) M-RoPE the reader does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.floors import ACCEPT_LEN_FAVOURITES
from builders.heads import config_for, constant_head, random_head
from builders.shipped import MASK
from harness import (
    Answer,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    glance_flags,
    start,
    tokens_per_round,
)

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}
FEW = 24  # of 42 prompts; `--whole` asks all


@dataclass
class Run:
    server: Server
    asked: list[dict]
    fresh: list[Answer]
    cached: list[Answer]


def favourites(answers: list[Answer], count: int = 4) -> list[int]:
    """The tokens that a random model repeats most: drafting just these is often right."""
    return [t for t, _ in Counter(t for answer in answers for t in answer.ids).most_common(count)]


HEADS = ["favourites", pytest.param("random", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=HEADS)
def run(
    request: pytest.FixtureRequest,
    qwen: Path,
    plain_qwen: Plain,
    prompts: list[dict],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    asked = prompts if request.config.getoption("--whole") else prompts[:FEW]
    folder, config = tmp_path_factory.mktemp("qwen"), config_for(qwen, MASK)
    if request.param == "random":
        head = random_head(config, folder / "head")
        flags = glance_flags(head, budget=16)
    else:
        wanted = favourites(plain_qwen.answers(asked, **LENGTH))
        head = constant_head(config, qwen, folder / "head", wanted)
        flags = glance_flags(head, topk=len(wanted), chunk=48, page=16)
    with start(qwen, folder / "server.log", *flags) as server:
        fresh = server.generate_all(asked, parallel=8, **LENGTH)
        cached = server.generate_all(asked[: len(asked) // 2], parallel=1, **LENGTH)
        yield Run(server, asked, fresh, cached)


def test_eight_at_a_time(run: Run, plain_qwen: Plain) -> None:
    assert_identical(run.fresh, plain_qwen.answers(run.asked, **LENGTH))


def test_one_by_one_from_the_cache(run: Run, plain_qwen: Plain) -> None:
    expected = plain_qwen.answers(run.asked[: len(run.cached)], **LENGTH)
    assert_identical(run.cached, expected)


def test_branches_are_accepted(run: Run, request: pytest.FixtureRequest) -> None:
    if "random" in request.node.callspec.id:
        pytest.skip("a random head is right by chance only")
    assert tokens_per_round(run.fresh) > ACCEPT_LEN_FAVOURITES


def test_no_slot_is_lost(run: Run) -> None:
    assert_no_slot_lost(run.server)
