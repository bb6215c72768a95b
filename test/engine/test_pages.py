"""Large pages: tokens and log-probabilities, turns on cached prefixes, a pool of few pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.floors import ACCEPT_LEN_TURNS
from harness import (
    PLAIN,
    READER,
    Answer,
    Server,
    assert_identical,
    assert_no_slot_lost,
    booting,
    chat,
    glance_flags,
    start,
    tokens_per_round,
    wait_until_up,
)
from replies import assert_same

LONG = {"max_new_tokens": 64, "ignore_eos": True}
LOGPROBS = {
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 3,
    "token_ids_logprob": [0, 25, 500],
}


@pytest.fixture(scope="module")
def pages_of_256(logs: Path) -> Iterator[tuple[Server, Server]]:
    flags = ["--page-size", "256"]
    with (
        booting(READER, logs / "pages-256-plain.log", *PLAIN, *flags) as plain,
        start(READER, logs / "pages-256.log", *glance_flags(tokens=2560), *flags) as ours,
    ):
        wait_until_up(plain)
        yield ours, plain


@pytest.fixture(params=[64, pytest.param(256, marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest) -> tuple[Server, Server]:
    names = {64: "parsing", 256: "pages_of_256"}
    return request.getfixturevalue(names[request.param])


def test_batch_in_few_pages(pair: tuple[Server, Server], prompts: list[dict]) -> None:
    ours, plain = pair
    requests = prompts[:10]
    expected = plain.generate_all(requests, parallel=8, **LONG)
    assert_identical(ours.generate_all(requests, parallel=8, **LONG), expected)
    assert_no_slot_lost(ours)


def test_logprobs(pair: tuple[Server, Server], questions: list[dict]) -> None:
    for request in (questions[0], questions[14], {"text": chat("Count: 1, 2, 3, 4, 5, 6,")}):
        asked = {**request, "extra": LOGPROBS}
        replies = [server.generate(asked, **LONG) for server in pair]
        assert_identical(replies[:1], replies[1:])
        kept = [[reply.meta[k] for k in reply.meta if "logprobs" in k] for reply in replies]
        assert_same(*kept)


def test_turns_on_cached_prefixes(pair: tuple[Server, Server], questions: list[dict]) -> None:
    """A picture first, then text about it; each turn's prompt holds all answers before it."""
    for server in pair:
        server.flush_cache()
    asks = [
        "Read all lines. " * 50,
        "What is the Total?",
        "Read all lines again.",
        "Describe the image.",
    ]
    prompt, turns, warm = "", [], []
    for number, ask in enumerate(asks):
        prompt += chat(ask, images=number == 0)
        request = {"text": prompt, "images": questions[0]["images"]}
        answers = [server.generate(request, **LONG) for server in pair]
        assert_identical(answers[:1], answers[1:])
        assert answers[0].meta["cached_tokens"] == answers[1].meta["cached_tokens"]
        turns.append(request)
        warm.append(answers[0])
        prompt += answers[0].text + "<|im_end|>\n"
    assert warm[-1].meta["cached_tokens"] > warm[0].meta["cached_tokens"] == 0
    cold = [cold_answer(pair[0], request, **LONG) for request in turns]
    assert_identical(cold, warm)


def cold_answer(server: Server, request: dict, **sampling: object) -> Answer:
    server.flush_cache()
    return server.generate(request, **sampling)


def test_the_head_finds_its_part_of_cached_pages(
    pair: tuple[Server, Server], questions: list[dict]
) -> None:
    """Pictures that the head drafts well, one after another in a conversation: as many rounds from
    the cache as without it."""
    ours, text, images = pair[0], "", []
    cold, warm = [], []
    for question in questions[3:6]:
        text, images = text + question["text"], images + question["images"]
        request = {"text": text, "images": images}
        cold.append(cold_answer(ours, request, max_new_tokens=64))
        warm.append(ours.generate(request, max_new_tokens=64))
        text += cold[-1].text + "<|im_end|>\n"
    assert_identical(warm, cold)
    assert [answer.rounds for answer in warm] == [answer.rounds for answer in cold]
    assert warm[-1].meta["cached_tokens"] >= 256 > cold[-1].meta["cached_tokens"]
    assert tokens_per_round(warm) > ACCEPT_LEN_TURNS
