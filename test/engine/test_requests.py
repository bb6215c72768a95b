"""Requests beside each other: mixed batches, streaming, aborts, sampled neighbours."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders.floors import ACCEPT_LEN_READ, PICTURES_READ, reached
from builders.pictures import encode, form
from builders.prompts import CONTEXT, picture
from harness import (
    Answer,
    Plain,
    Rounds,
    Server,
    ask_together,
    assert_identical,
    assert_no_slot_lost,
    chat,
    tokens_per_round,
)
from sglang.glance.tasks.score import right

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}


def test_shipped_pictures_are_read(glance: Server, plain: Plain, questions: list[dict]) -> None:
    expected = plain.answers(questions)
    glance.flush_cache()
    assert_identical(glance.generate_all(questions, parallel=1), expected)
    glance.flush_cache()
    assert_identical(glance.generate_all(questions, parallel=8), expected)
    pairs = zip(questions, expected, strict=True)
    num_right = sum(right(asked["task"], answer.text, asked["values"]) for asked, answer in pairs)
    assert reached("pictures read", num_right) >= PICTURES_READ


def test_acceptance_does_not_fall_silently(glance: Server, questions: list[dict]) -> None:
    glance.flush_cache()
    read = [q for q in questions if q["task"] in ("document", "chart")]
    assert tokens_per_round(glance.generate_all(read, parallel=1)) >= ACCEPT_LEN_READ


def test_text_then_picture_then_text(glance: Server, plain: Plain, questions: list[dict]) -> None:
    """The second and third request are shorter and longer than what the slots held before."""
    glance.flush_cache()
    requests = [{"text": chat("word " * 240)}, questions[0], {"text": chat("Hello.")}]
    answers = [glance.generate(request, **LENGTH) for request in requests]
    assert_identical(answers, plain.answers(requests, **LENGTH))


def test_batch_of_pictures_and_texts(
    glance: Server, plain: Plain, prompts: list[dict], rounds: Rounds
) -> None:
    """All eight run together: most rounds hold several requests, with different runs accepted."""
    requests = prompts[:8]
    assert {bool(request.get("images")) for request in requests} == {True, False}
    for _ in range(2):
        assert_identical(
            glance.generate_all(requests, parallel=8, **LENGTH), plain.answers(requests, **LENGTH)
        )
    assert any(len(lens) >= 6 and len(set(lens)) >= 3 for lens in rounds.new())


def test_same_question_twice_at_once(glance: Server, plain: Plain, questions: list[dict]) -> None:
    glance.flush_cache()
    requests = [questions[3]] * 4
    assert_identical(glance.generate_all(requests, parallel=4), plain.answers(requests))


def test_two_answers_to_one_request(glance: Server, plain: Plain, questions: list[dict]) -> None:
    url = f"{glance.url}/generate"
    body = {
        "text": questions[1]["text"],
        "image_data": questions[1]["images"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 64, "n": 2},
    }
    replies = glance.session.post(url, json=body, timeout=300).json()
    expected = plain.answer(questions[1]).ids
    assert [reply["output_ids"] for reply in replies] == [expected, expected]


def test_sampled_neighbour(glance: Server, plain: Plain, questions: list[dict]) -> None:
    with ThreadPoolExecutor(4) as pool:
        sampled = [
            pool.submit(glance.generate, question, temperature=1.0, **LENGTH)
            for question in questions[14:17]
        ]
        greedy = [glance.generate(question, **LENGTH) for question in questions[:4]]
    assert_identical(greedy, plain.answers(questions[:4], **LENGTH))
    assert all(len(answer.result().ids) == 64 for answer in sampled)


def test_streamed_chunks_join_to_the_answer(
    glance: Server, plain: Plain, questions: list[dict]
) -> None:
    for question in (questions[0], questions[9], questions[14], {"text": chat("Hello.")}):
        expected = plain.answer(question)
        chunks = list(glance.stream(question))
        assert_identical(chunks[-1:], [expected])
        for before, after in zip(chunks, chunks[1:]):
            assert after.text.startswith(before.text)
            assert after.ids[: len(before.ids)] == before.ids
        assert len(chunks) > 2  # it did arrive in parts


def test_streamed_stop_string_does_not_leak(
    glance: Server, plain: Plain, questions: list[dict]
) -> None:
    whole = plain.answer(questions[0]).text
    for stop in ("\n", whole[10:13], whole[-3:-1]):
        chunks = list(glance.stream(questions[0], stop=stop))
        assert_identical(chunks[-1:], [plain.answer(questions[0], stop=stop)])
        assert all(stop not in chunk.text for chunk in chunks)


def abort_after(server: Server, request: dict, rid: str, num_chunks: int) -> Answer:
    """Stream ``request`` and abort it once ``num_chunks`` messages have come. Its last message."""
    messages = []
    stream = server.stream({**request, "extra": {"rid": rid}}, **{**LENGTH, "max_new_tokens": 400})
    for message in stream:
        messages.append(message)
        if len(messages) == num_chunks:
            server.session.post(f"{server.url}/abort_request", json={"rid": rid}, timeout=60)
    return messages[-1]


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 5])
def test_abort_leaves_the_others_alone(
    glance: Server, plain: Plain, questions: list[dict], num_chunks: int
) -> None:
    others = [questions[5], {"text": chat("What is the Total?")}, questions[15]]
    with ThreadPoolExecutor(4) as pool:
        doomed = pool.submit(abort_after, glance, questions[2], f"doomed-{num_chunks}", num_chunks)
        answers = list(pool.map(lambda request: glance.generate(request, **LENGTH), others))
    assert doomed.result().meta["finish_reason"]["type"] == "abort"
    assert_identical(answers, plain.answers(others, **LENGTH))
    assert_no_slot_lost(glance)


def test_client_that_hangs_up(glance: Server, plain: Plain, questions: list[dict]) -> None:
    """The connection is closed mid-answer without an abort request."""
    stream = glance.stream(questions[2], **{**LENGTH, "max_new_tokens": 400})
    next(stream)
    stream.close()
    assert_identical([glance.generate(questions[4])], [plain.answer(questions[4])])
    assert_no_slot_lost(glance)


def test_broken_picture_is_refused_and_the_server_lives(
    glance: Server, plain: Plain, questions: list[dict]
) -> None:
    url = encode(form(7))
    body = {
        **{"text": questions[0]["text"], "image_data": [url[: len(url) // 2]]},
        "sampling_params": {"max_new_tokens": 4},
    }
    reply = glance.session.post(f"{glance.url}/generate", json=body, timeout=60)
    assert not reply.ok
    assert_identical([glance.generate(questions[0])], [plain.answer(questions[0])])


def test_request_larger_than_the_context_is_refused(glance: Server) -> None:
    body = {"text": chat("word " * 5000), "sampling_params": {"max_new_tokens": 4}}
    reply = glance.session.post(f"{glance.url}/generate", json=body, timeout=60)
    assert reply.status_code == 400


def test_requests_that_fill_the_context(glance: Server, plain: Plain) -> None:
    """SGLang ends them two tokens before its limit, in the middle of a round's window."""
    asks = []
    for words in (3990, 4010):
        request = {"text": chat("word " * words)}
        prompt_len = plain.answer(request, max_new_tokens=1).meta["prompt_tokens"]
        limit = {"max_new_tokens": CONTEXT - prompt_len, "ignore_eos": True}
        assert 4 < limit["max_new_tokens"] < 100
        asks.append((request, limit))
    answers = ask_together(glance, asks)
    assert_identical(answers, plain.answers_to(asks))
    assert {a.meta["prompt_tokens"] + len(a.ids) for a in answers} == {CONTEXT - 2}
    assert_no_slot_lost(glance)


def test_hidden_states_are_refused(glance: Server) -> None:
    body = {"text": chat("Hello."), "return_hidden_states": True}
    reply = glance.session.post(f"{glance.url}/generate", json=body, timeout=60)
    assert reply.status_code == 400
    assert "hidden" in reply.text


def test_requests_that_come_and_go(glance: Server, plain: Plain, prompts: list[dict]) -> None:
    """A new request joins every few rounds, while others finish."""
    requests = prompts[:12]
    limits = [8 + 5 * number for number in range(len(requests))]
    answers = []
    with ThreadPoolExecutor(len(requests)) as pool:
        for request, limit in zip(requests, limits, strict=True):
            length = {"max_new_tokens": limit, "ignore_eos": True}
            answers.append(pool.submit(glance.generate, request, **length))
            time.sleep(0.05)
    expected = [
        plain.answer(request, max_new_tokens=limit, ignore_eos=True)
        for request, limit in zip(requests, limits, strict=True)
    ]
    assert_identical([answer.result() for answer in answers], expected)


def test_many_picture_requests_leave_nothing(glance: Server) -> None:
    """Each picture is new, so the cache turns over several times in a pool of 12000 slots."""
    requests = [picture("Read all lines.", encode(form(1000 + i))) for i in range(100)]
    answers = glance.generate_all(requests, parallel=8, max_new_tokens=48)
    assert all(answer.ids for answer in answers)
    assert_no_slot_lost(glance)
