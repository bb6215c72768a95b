"""SGLang's own speculation on the same CPU path, which GLANCE is measured against: lossless too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.eagle3_head import random_eagle3_head
from harness import READER, Answer, Plain, assert_identical, start
from sglang.glance.shipped import EAGLE3_HEAD

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}
NUM_PROMPTS, NUM_AGAIN = 16, 6
slow = pytest.mark.slow


@dataclass
class Run:
    fresh: list[Answer]
    again: list[Answer]
    expected: list[Answer]


def ngram_flags(breadth: int) -> list[str]:
    return [
        *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
        *("--speculative-ngram-max-bfs-breadth", str(breadth)),
    ]


def eagle3_flags(head: Path, topk: int) -> list[str]:
    return [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(head)),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", "16"),
    ]


CASES = [
    pytest.param(("reader", "ngram"), id="ngram"),
    pytest.param(("reader", 8), id="eagle3-topk8", marks=slow),
    pytest.param(("reader", 4), id="eagle3-topk4"),
    pytest.param(("qwen", "ngram"), id="qwen-ngram", marks=slow),
    pytest.param(("qwen", 4), id="qwen-eagle3-topk4", marks=slow),
    pytest.param(("qwen", 8), id="qwen-eagle3-topk8", marks=slow),
]


@pytest.fixture(scope="module", params=CASES)
def run(
    request: pytest.FixtureRequest, prompts: list[dict], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    which, method = request.param
    model = READER if which == "reader" else request.getfixturevalue("qwen")
    plain: Plain = request.getfixturevalue("plain" if which == "reader" else "plain_qwen")
    folder = tmp_path_factory.mktemp("baseline")
    if method == "ngram":
        flags = ngram_flags(breadth=4)
    else:
        drawn = which == "qwen"  # nobody trained one for it
        head = random_eagle3_head(model, folder / "head") if drawn else EAGLE3_HEAD
        flags = eagle3_flags(head, topk=method)
    # torch.compile would spend seconds on the first batch of a topk above 1.
    env = {"TORCHDYNAMO_DISABLE": "1"}
    with start(model, folder / "server.log", "--dtype", "float32", *flags, env=env) as server:
        fresh = server.generate_all(prompts[:NUM_PROMPTS], parallel=8, **LENGTH)
        again = server.generate_all(prompts[:NUM_AGAIN], parallel=1, **LENGTH)
    expected = plain.answers(prompts[:NUM_PROMPTS], **LENGTH)
    yield Run(fresh, again, expected)


def test_eight_at_a_time(run: Run) -> None:
    assert_identical(run.fresh, run.expected)


def test_one_by_one_from_the_cache(run: Run) -> None:
    assert_identical(run.again, run.expected[: len(run.again)])


def test_drafts_were_verified(run: Run) -> None:
    assert all(answer.rounds > 0 for answer in run.fresh)
