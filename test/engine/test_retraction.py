"""Requests that are taken back for lack of slots, and started again, give the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import (
    READER,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    glance_flags,
    start,
)

LENGTH = {"max_new_tokens": 240, "ignore_eos": True}


PAGES = [
    pytest.param(1, id="page1"),
    pytest.param(16, id="page16", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=PAGES)
def small_pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Room for about half of eight requests' answers, all admitted as if 8 tokens would do."""
    log = tmp_path_factory.mktemp("retraction") / "server.log"
    flags = glance_flags(budget=33, tokens=1280, page=request.param)
    env = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
    with start(READER, log, *flags, env=env) as server:
        yield server


def test_retracted_requests_give_plain_tokens(
    small_pool: Server, plain: Plain, prompts: list[dict]
) -> None:
    requests = prompts[:8]
    answers = small_pool.generate_all(requests, parallel=8, **LENGTH)
    assert sum(answer.meta["num_retractions"] for answer in answers) > 0
    assert "Retract requests" in small_pool.log.read_text()
    assert_identical(answers, plain.answers(requests, **LENGTH))


def test_no_slot_is_lost(small_pool: Server) -> None:
    assert_no_slot_lost(small_pool)


def test_request_larger_than_the_pool(
    small_pool: Server, plain: Plain, prompts: list[dict]
) -> None:
    """Refused or cut, with the server alive and right afterwards."""
    body = {"text": "word " * 1500, "sampling_params": {"max_new_tokens": 4}}
    reply = small_pool.session.post(f"{small_pool.url}/generate", json=body, timeout=60)
    assert reply.status_code == 400
    assert_identical(
        [small_pool.generate(prompts[0], **LENGTH)], [plain.answer(prompts[0], **LENGTH)]
    )
    assert_no_slot_lost(small_pool)
