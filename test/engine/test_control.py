"""What an operator does to a running server: pauses, aborts, priorities, health checks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests as http
from harness import (
    READER,
    Answer,
    Ask,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    post,
)

LONG = {"max_new_tokens": 120, "ignore_eos": True}


@contextlib.contextmanager
def answering(server: Server, asks: Sequence[Ask], at_once: int) -> Iterator[list[Future]]:
    """Answers that are under way: at least ``at_once`` of them have begun."""
    begun = threading.Semaphore(0)

    def follow(ask: Ask) -> Answer:
        own = Server(server.url, server.process, server.log)
        last = None
        for message in own.stream(ask[0], **ask[1]):
            if last is None:
                begun.release()
            last = message
        return last

    with ThreadPoolExecutor(len(asks)) as pool:
        futures = [pool.submit(follow, ask) for ask in asks]
        for _ in range(at_once):
            assert begun.acquire(timeout=60), server.tail()
        yield futures


@contextlib.contextmanager
def paused(server: Server, mode: str) -> Iterator[None]:
    post(server, "/pause_generation", mode=mode)
    try:
        yield
    finally:
        post(server, "/continue_generation")


def results(futures: Sequence[Future]) -> list[Answer]:
    return [future.result(timeout=120) for future in futures]


@pytest.mark.parametrize(
    ("mode", "flushed", "updated"),
    [("in_place", 400, False), ("retract", 200, False), ("retract", 200, True)],
    ids=["in place", "retract", "retract and update"],
)
def test_pause_and_continue(
    busy: Server, plain: Plain, prompts: list[dict], mode: str, flushed: int, updated: bool
) -> None:
    requests = prompts[:6]
    with answering(busy, [(request, LONG) for request in requests], at_once=3) as under_way:
        with paused(busy, mode):
            post(busy, "/flush_cache", status=flushed)
            if updated:
                post(busy, "/update_weights_from_disk", model_path=str(READER))
            time.sleep(0.5)
            assert not all(future.done() for future in under_way)
        assert_identical(results(under_way), plain.answers(requests, **LONG))
    assert_no_slot_lost(busy)


def assert_broken_off(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Aborted, each with a beginning of plain decoding's answer."""
    for ours, plain in zip(answers, expected, strict=True):
        assert ours.meta["finish_reason"]["type"] == "abort"
        assert ours.ids == plain.ids[: len(ours.ids)]
        assert len(ours.ids) < len(plain.ids)


def test_pause_that_aborts(busy: Server, plain: Plain, prompts: list[dict]) -> None:
    requests = prompts[:6]
    asks = [(request, LONG) for request in requests]
    with answering(busy, asks, at_once=3) as under_way, paused(busy, "abort"):
        answers = results(under_way)
    assert_broken_off(answers, plain.answers(requests, **LONG))
    assert_no_slot_lost(busy)
    assert_identical([busy.generate(requests[0], **LONG)], [plain.answer(requests[0], **LONG)])


def test_abort_of_all_while_some_are_retracted(
    small_pool: Server, plain: Plain, prompts: list[dict]
) -> None:
    requests, length = prompts[:8], {"max_new_tokens": 240, "ignore_eos": True}

    def retractions() -> int:
        return small_pool.log.read_text(errors="replace").count("Retract requests")

    before = retractions()
    with answering(small_pool, [(request, length) for request in requests], 1) as under_way:
        deadline = time.monotonic() + 60
        while retractions() == before:
            assert time.monotonic() < deadline, small_pool.tail()
            time.sleep(0.02)
        post(small_pool, "/abort_request", abort_all=True)
        answers = results(under_way)
    broken_off = [a.meta["finish_reason"]["type"] == "abort" for a in answers]
    assert any(broken_off)
    pairs = list(zip(answers, plain.answers(requests, **length), strict=True))
    assert_broken_off(*zip(*[pair for pair, cut in zip(pairs, broken_off) if cut]))
    for ours, expected in [pair for pair, cut in zip(pairs, broken_off) if not cut]:
        assert_identical([ours], [expected])
    assert_no_slot_lost(small_pool)
    answer = small_pool.generate(requests[0], **length)
    assert_identical([answer], plain.answers(requests[:1], **length))


def test_higher_priorities_take_the_place_of_running_requests(
    busy: Server, plain: Plain, prompts: list[dict]
) -> None:
    low, high = prompts[:4], prompts[4:6]
    short = {"max_new_tokens": 40, "ignore_eos": True}
    asks = [({**request, "extra": {"priority": 0}}, LONG) for request in low]
    with answering(busy, asks, at_once=4) as under_way:
        urgent = [({**request, "extra": {"priority": 100}}, short) for request in high]
        with answering(busy, urgent, at_once=2) as ahead:
            overtaking = results(ahead)
        assert not all(future.done() for future in under_way)
        answers = results(under_way)
    assert_identical(overtaking, plain.answers(high, **short))
    assert sum(answer.meta["num_retractions"] for answer in answers) > 0
    assert_identical(answers, plain.answers(low, **LONG))
    assert_no_slot_lost(busy)


def test_an_id_in_use(busy: Server, plain: Plain, prompts: list[dict]) -> None:
    """The second request of an id is refused, as by plain decoding; the first is not disturbed,
    and the id is free again after it."""
    first, second = ({**request, "extra": {"rid": "one"}} for request in prompts[:2])
    for server in (busy, plain.server):
        with answering(server, [(first, LONG)], at_once=1) as under_way:
            with pytest.raises(http.HTTPError, match="Duplicate request ID"):
                server.generate(second)
            assert_identical(results(under_way), plain.answers(prompts[:1], **LONG))
        body = {"text": [first["text"], second["text"]], "rid": ["two", "two"]}
        assert "Duplicate request ID" in str(post(server, "/generate", status=400, **body))
        assert_identical([server.generate(second)], [plain.answer(prompts[1])])
    assert_no_slot_lost(busy)


def test_health_and_flush_beside_running_requests(
    busy: Server, plain: Plain, prompts: list[dict]
) -> None:
    requests = prompts[:4]
    with answering(busy, [(request, LONG) for request in requests], at_once=4) as under_way:
        post(busy, "/flush_cache", status=400)
        assert busy.get("/health_generate").status_code == 200
        assert_identical(results(under_way), plain.answers(requests, **LONG))
    assert busy.get("/health_generate").status_code == 200
    assert_no_slot_lost(busy)
