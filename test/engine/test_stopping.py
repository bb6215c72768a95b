"""Answers that end inside an accepted run: EOS, stop tokens, stop strings, token limits."""

from __future__ import annotations

import itertools

import pytest
from builders.prompts import CONTEXT, near_the_end
from builders.shipped import token
from harness import (
    Answer,
    Plain,
    Rounds,
    Server,
    ask_together,
    assert_identical,
    assert_no_slot_lost,
    chat,
)

BLOCK = 16


@pytest.fixture(scope="module")
def document(questions: list[dict]) -> dict:
    """The first document: a sentence with codes, accepted in runs of many lengths."""
    return questions[0]


@pytest.fixture(scope="module")
def whole(document: dict, plain: Plain) -> Answer:
    return plain.answer(document)


def offset_of_end(answer: Answer, rounds: list[list[int]]) -> int:
    """Place of the answer's last token in its last accepted run, from 1."""
    return len(answer.ids) - 1 - sum(lens[0] for lens in rounds[:-1])


def first_uses(ids: list[int]) -> list[int]:
    """Places of tokens that did not occur before; place 0 comes from the prefill."""
    return [place for place, token in enumerate(ids) if token not in ids[:place]]


def test_end_of_text_at_every_offset(
    document: dict, whole: Answer, glance: Server, plain: Plain, rounds: Rounds
) -> None:
    """The first k characters of the answer are put into the prompt, which shifts the runs."""
    assert whole.meta["finish_reason"]["type"] == "stop"
    offsets = set()
    for given in range(len(whole.text)):
        request = {**document, "text": document["text"] + whole.text[:given]}
        answer = glance.generate(request)
        assert_identical([answer], [plain.answer(request)])
        if answer.rounds:
            offsets.add(offset_of_end(answer, rounds.new()))
    assert set(range(1, 11)) <= offsets


def test_stop_token_at_every_place(
    document: dict, whole: Answer, glance: Server, plain: Plain, rounds: Rounds
) -> None:
    offsets = set()
    for place in first_uses(whole.ids):
        stop = {"stop_token_ids": [whole.ids[place]]}
        answer = glance.generate(document, **stop)
        assert_identical([answer], [plain.answer(document, **stop)])
        assert len(answer.ids) == place + 1
        if answer.rounds:
            offsets.add(offset_of_end(answer, rounds.new()))
    assert len(offsets) >= 8


@pytest.mark.slow
def test_stop_token_at_every_offset_of_a_block(
    questions: list[dict], glance: Server, plain: Plain, rounds: Rounds
) -> None:
    """In all documents and charts: runs of up to the block's 15 drafts and the bonus."""
    offsets = set()
    for question in questions:
        if question["task"] not in ("document", "chart"):
            continue
        ids = plain.answer(question).ids
        for place in first_uses(ids):
            stop = {"stop_token_ids": [ids[place]]}
            answer = glance.generate(question, **stop)
            assert_identical([answer], [plain.answer(question, **stop)])
            if answer.rounds:
                offsets.add(offset_of_end(answer, rounds.new()))
    assert set(range(1, BLOCK)) <= offsets


def test_stop_string_at_every_place(
    document: dict, whole: Answer, glance: Server, plain: Plain
) -> None:
    """Strings of one to four characters that end at each character of the answer, where new."""
    text = whole.text
    stops = {
        text[end - size : end]
        for end, size in itertools.product(range(1, len(text) + 1), (1, 2, 4))
        if end >= size and text.find(text[end - size : end]) == end - size
    }
    assert len(stops) > len(text)
    for stop in sorted(stops):
        answer = glance.generate(document, stop=stop)
        assert_identical([answer], [plain.answer(document, stop=stop)])
        assert answer.text == text[: text.find(stop)]


def test_the_first_of_two_stops_in_one_run(
    document: dict, whole: Answer, glance: Server, plain: Plain
) -> None:
    """A stop string, EOS and the limit within one run: the earliest counts."""
    for stop, limit in itertools.product((whole.text[-1], whole.text[-4:-2]), (0, -1, -3)):
        sampling = {"stop": stop, "max_new_tokens": len(whole.ids) + limit}
        answer = glance.generate(document, **sampling)
        assert_identical([answer], [plain.answer(document, **sampling)])


def test_stop_string_behind_the_end_of_text(
    document: dict, whole: Answer, glance: Server, plain: Plain
) -> None:
    """A run accepted across EOS may hold a stop string after it, which must not count."""
    endless = {"ignore_eos": True, "max_new_tokens": len(whole.ids) + 6}
    beyond = 0
    for given in range(len(whole.text) - 12, len(whole.text)):
        request = {**document, "text": document["text"] + whole.text[:given]}
        ended, on = plain.answer(request), plain.answer(request, **endless)
        tail = on.text[len(ended.text) :]
        stop = next((c for c in tail if c not in ended.text), None)
        if ended.meta["finish_reason"]["type"] == "stop" and stop is not None:
            beyond += 1
            assert_identical(
                [glance.generate(request, stop=stop)], [plain.answer(request, stop=stop)]
            )
    assert beyond >= 3


def test_every_token_limit(document: dict, whole: Answer, glance: Server, plain: Plain) -> None:
    for limit in range(1, 41):
        answer = glance.generate(document, max_new_tokens=limit)
        assert answer.ids == whole.ids[:limit]
        assert_identical([answer], [plain.answer(document, max_new_tokens=limit)])


def test_one_token_is_never_verified(glance: Server, rounds: Rounds, document: dict) -> None:
    for request in (document, {"text": chat("Hello.")}):
        answer = glance.generate(request, max_new_tokens=1)
        assert len(answer.ids) == 1
        assert answer.rounds == 0
    assert rounds.new() == []


def test_limits_and_stops_in_one_batch(questions: list[dict], glance: Server, plain: Plain) -> None:
    requests = questions[:6]
    for limit in (5, 17, 33):
        answers = glance.generate_all(requests, parallel=6, max_new_tokens=limit, stop=["1", "\n"])
        assert_identical(answers, plain.answers(requests, max_new_tokens=limit, stop=["1", "\n"]))


def test_end_of_the_context(served: Server, plain: Plain, questions: list[dict]) -> None:
    """A tree is deeper than what is left: nothing is written or embedded past the context, and
    rows of the requests beside it stay theirs."""
    endless = {"ignore_eos": True, "max_new_tokens": None}
    (image,) = questions[0]["images"]
    for requests in (
        [near_the_end(left) for left in (8, 16, 24, 40)],
        [near_the_end(left, image) for left in (12, 32)],
    ):
        asks = [(request, endless) for request in requests]
        asks += [(question, {}) for question in questions[:4]]
        answers = ask_together(served, asks)
        assert_identical(answers, plain.answers_to(asks))
        for answer in answers[: len(requests)]:
            assert answer.meta["finish_reason"]["type"] == "length"
            assert answer.meta["prompt_tokens"] + len(answer.ids) == CONTEXT - 2


ENDS = {
    "eos": {},
    "ignored-eos": {"ignore_eos": True, "max_new_tokens": 50},
    "ignored-stop-token": {
        "ignore_eos": True,
        "stop_token_ids": [token(":")],
        "max_new_tokens": 50,
    },
    "stop-token": {"stop_token_ids": [token("5"), token("e")]},
    "stop-strings": {"stop": ["al", "4", "re", "\n"]},
    "kept-stop-string": {"stop": ["al", "4", "re"], "no_stop_trim": True},
    "stop-regex": {"stop_regex": "[0-9e]{2}"},
    "limit": {"max_new_tokens": 7},
    "at-least": {"min_new_tokens": 30, "max_new_tokens": 50},
    "special-tokens": {"skip_special_tokens": False},
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_alone_and_together(
    served: Server, plain: Plain, questions: list[dict], end: str
) -> None:
    """Pictures and texts one by one, then all of them with neighbours that end otherwise."""
    requests = [*questions[:12:3], questions[14], {"text": chat("Describe a big red circle.")}]
    expected = plain.answers(requests, **ENDS[end])
    assert_identical([served.generate(request, **ENDS[end]) for request in requests], expected)
    asks = [(request, ENDS[end]) for request in requests]
    asks += [(questions[1], {}), (questions[2], ENDS["ignored-eos"])]
    assert_identical(ask_together(served, asks), plain.answers_to(asks))


@pytest.mark.parametrize("number", [2, 5])
def test_several_answers_to_one_request(
    served: Server, plain: Plain, questions: list[dict], number: int
) -> None:
    for end in ("eos", "stop-strings", "limit"):
        params = {"temperature": 0, "max_new_tokens": 64, **ENDS[end], "n": number}
        body = {"text": questions[1]["text"], "image_data": questions[1]["images"]}
        body["sampling_params"] = params
        replies = served.session.post(f"{served.url}/generate", json=body, timeout=300).json()
        answers = [Answer(one["output_ids"], one["text"], one["meta_info"]) for one in replies]
        assert_identical(answers, [plain.answer(questions[1], **ENDS[end])] * number)


def test_no_slot_is_lost(served: Server) -> None:
    assert_no_slot_lost(served)
