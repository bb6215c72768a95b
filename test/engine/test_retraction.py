"""Requests that are taken back for lack of slots, and started again, give the same tokens."""

from __future__ import annotations

from harness import Plain, Server, assert_identical, assert_no_slot_lost

LENGTH = {"max_new_tokens": 240, "ignore_eos": True}


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
