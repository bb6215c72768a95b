"""Sessions: a later turn continues from what the earlier one showed, and from nothing behind it.

The host makes the next prompt from the ``output_ids`` of the last turn, which grow by whole
accepted runs. Here turns end at all places of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from harness import (
    PLAIN,
    READER,
    Answer,
    Plain,
    Server,
    assert_no_slot_lost,
    booting,
    chat,
    glance_flags,
    start,
)
from logprobs import EVERYTHING, assert_same_logprobs

Turn = Callable[..., Answer]
MORE = "<|im_end|>\n" + chat("Now describe a big red circle.")
SHORT = {"max_new_tokens": 12}


@contextlib.contextmanager
def session(server: Server, **how: object) -> Iterator[Turn]:
    """Yields ``turn(request, after=answer, sampling=..., **session_params)``."""

    def post(path: str, body: dict) -> object:
        reply = server.session.post(f"{server.url}/{path}", json=body, timeout=60)
        assert reply.ok, reply.text
        return reply.json() if reply.text else None

    name = post("open_session", {"capacity_of_str_len": 4096, **how})

    def turn(
        request: dict, after: Answer | None = None, sampling: dict = SHORT, **more: object
    ) -> Answer:
        params = {"id": name, "rid": after.meta["id"] if after else None, **more}
        extra = {**request.get("extra", {}), "session_params": params}
        return server.generate({**request, "extra": extra}, **sampling)

    yield turn
    post("close_session", {"session_id": name})


def assert_same_turns(ours: list[Answer], plain: list[Answer]) -> None:
    """Ids, text, reason, counts, log-probabilities; behind the first turn also what was cached."""
    assert_same_logprobs(ours, plain)
    cached = [[answer.meta["cached_tokens"] for answer in turns[1:]] for turns in (ours, plain)]
    assert cached[0] == cached[1]


def two_turns(server: Server, first: dict, sampling: dict) -> list[Answer]:
    with session(server) as turn:
        answer = turn(first, sampling=sampling)
        return [answer, turn({"text": MORE}, after=answer)]


def many_turns(server: Server, first: dict, picture: dict, sampling: dict) -> list[Answer]:
    """Two answers to the first turn, one of them without its output, one in place of another, one
    from the middle of the history, and another picture."""
    more = {"text": MORE}
    with session(server) as turn:
        one = turn(first, sampling=sampling)
        two = turn({**more, "extra": EVERYTHING}, after=one, sampling=sampling)
        branch = turn({"text": chat("Say it again.")}, after=one)
        dropped = turn(more, after=one, drop_previous_output=True)
        offset = turn(more, after=two, offset=two.meta["prompt_tokens"] + 2)
        again = turn({"text": "<|im_end|>\n" + picture["text"], "images": picture["images"]}, two)
        replaced = turn({"text": chat("Say it again.")}, after=two, replace=True)
        last = turn(more, after=replaced)
        return [one, two, branch, dropped, offset, again, replaced, last]


def ends_in(answer: Answer) -> list[dict]:
    """Parameters that end ``answer`` at each of its tokens, by all that can end it."""
    ids, text = answer.ids, answer.text
    first = [place for place, token in enumerate(ids) if token not in ids[:place]]
    strings = [text[end - 2 : end] for end in range(2, len(text), 9)]
    return [
        {},
        *({"stop_token_ids": [ids[place]]} for place in first),
        *({"max_new_tokens": limit} for limit in range(1, len(ids) + 1, 4)),
        *({"stop": stop} for stop in strings),
        {"stop": text[6], "stop_token_ids": [ids[9]], "max_new_tokens": 8},
    ]


def test_second_turn_after_every_end(plain: Plain, glance: Server, questions: list[dict]) -> None:
    ends = ends_in(plain.answer(questions[0]))
    assert len(ends) > 35
    both = []
    for server in (plain.server, glance):
        with ThreadPoolExecutor(4) as pool:
            both.append(list(pool.map(partial(two_turns, server, questions[0]), ends)))
    for turns, expected in zip(both[1], both[0], strict=True):
        assert_same_logprobs(turns, expected)
    assert len({turns[0].meta["completion_tokens"] for turns in both[0]}) > 25
    assert_no_slot_lost(glance)


def test_second_turn_after_end_of_text_at_every_offset(
    glance: Server, plain: Plain, questions: list[dict]
) -> None:
    """The first k characters of the answer stand in the prompt, which shifts the runs."""
    whole = plain.answer(questions[0])
    for given in range(len(whole.text) - 12, len(whole.text)):
        first = {**questions[0], "text": questions[0]["text"] + whole.text[:given]}
        for server in (plain.server, glance):
            server.flush_cache()
        ours, expected = (two_turns(server, first, {}) for server in (glance, plain.server))
        assert expected[0].meta["finish_reason"]["type"] == "stop"
        assert_same_turns(ours, expected)


@pytest.mark.parametrize("end", ["eos", "stop token", "stop string", "limit"])
def test_branches_and_replacements(
    glance: Server, plain: Plain, questions: list[dict], end: str
) -> None:
    whole = plain.answer(questions[0])
    sampling = {
        "eos": {},
        "stop token": {"stop_token_ids": [whole.ids[7]]},
        "stop string": {"stop": whole.text[14:16]},
        "limit": {"max_new_tokens": 10},
    }[end]
    for first in (questions[0], {"text": chat("Describe a big red circle.")}):
        for server in (plain.server, glance):
            server.flush_cache()
        ours, expected = (
            many_turns(server, first, questions[6], sampling) for server in (glance, plain.server)
        )
        assert_same_turns(ours, expected)
    assert_no_slot_lost(glance)


def streaming_turns(server: Server, first: dict, sampling: dict) -> list[Answer]:
    with session(server, streaming=True) as turn:
        requests = [first, *[{"text": MORE}] * 3]
        return [turn(request, sampling={**SHORT, **sampling}) for request in requests]


@pytest.fixture(scope="module")
def streaming_pair(logs: Path) -> Iterator[tuple[Server, Server]]:
    """Plain decoding and GLANCE, both with streaming sessions."""
    flag = "--enable-streaming-session"
    with (
        booting(READER, logs / "streaming-plain.log", *PLAIN, flag) as plain,
        start(READER, logs / "streaming-glance.log", *glance_flags(), flag) as glance,
    ):
        yield Plain(plain).server, glance


@pytest.mark.slow
def test_streaming_sessions(
    streaming_pair: tuple[Server, Server], plain: Plain, questions: list[dict]
) -> None:
    """A turn keeps its K/V for the next one, all but that of its last token, which has none."""
    for sampling in ends_in(plain.answer(questions[0]))[::2]:
        for server in streaming_pair:
            server.flush_cache()
        expected, ours = (streaming_turns(s, questions[0], sampling) for s in streaming_pair)
        assert_same_turns(ours, expected)
    assert_no_slot_lost(streaming_pair[1])
