"""What an operator does to a running server: new weights, pauses, aborts, priorities."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import requests as http
from builders.weights import WEIGHTS, changed, named_as_a_head, sent, weaker
from harness import (
    HEAD,
    READER,
    SMALL_POOL,
    Answer,
    Ask,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    glance_flags,
    start,
    tokens_per_round,
)
from safetensors.torch import load_file

LONG = {"max_new_tokens": 120, "ignore_eos": True}
BUSY = (
    *glance_flags(tokens=SMALL_POOL),
    *("--max-running-requests", "4"),
    *("--enable-priority-scheduling", "--schedule-policy", "lof"),
)


def post(server: Server, path: str, status: int = 200, **body: object) -> dict | str:
    """The reply, which must have this status; its JSON, where it is JSON."""
    reply = http.post(f"{server.url}{path}", json=body, timeout=60)
    assert reply.status_code == status, f"{path}: {reply.status_code} {reply.text[:500]}"
    is_json = "json" in reply.headers.get("content-type", "")
    return reply.json() if is_json else reply.text


class Folders(NamedTuple):
    """Checkpoints of the reader's sizes."""

    other: Path
    renamed: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("weights")
    return Folders(
        changed(READER, root / "other", weaker),
        changed(READER, root / "renamed", named_as_a_head),
    )


@pytest.fixture(scope="module")
def asked(questions: list[dict]) -> list[dict]:
    return [questions[0], questions[6], questions[14]]


class Started(NamedTuple):
    """A server that was started with other weights, what it answered then, and its head's hash."""

    server: Server
    before: list[Answer]
    head: str


def head_hash(server: Server) -> str:
    return post(server, "/weights_checker", selector="draft")["per_engine_checksum"]


@pytest.fixture(scope="module")
def started(logs: Path, folders: Folders, asked: list[dict]) -> Iterator[Started]:
    """The weights are the shipped reader's from the first test on. A small pool, four requests at
    once, priorities."""
    env = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
    with start(folders.other, logs / "control.log", *BUSY, env=env) as server:
        before = [server.generate(request) for request in asked]
        head = head_hash(server)
        post(server, "/update_weights_from_disk", model_path=str(READER))
        yield Started(server, before, head)


@pytest.fixture
def busy(started: Started) -> Server:
    return started.server


def assert_as_started_with(
    busy: Server, glance: Server, plain: Plain, asked: Sequence[dict]
) -> None:
    """Plain decoding's answers, in as many rounds as on a server that was never updated."""
    ours = [busy.generate(request) for request in asked]
    assert_identical(ours, plain.answers(asked))
    assert [a.rounds for a in ours] == [glance.generate(request).rounds for request in asked]


def test_update_from_a_folder(
    started: Started, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    assert [a.ids for a in started.before] != [a.ids for a in plain.answers(asked)]
    assert_as_started_with(started.server, glance, plain, asked)
    assert head_hash(started.server) == started.head


def test_update_from_the_same_folder(
    busy: Server, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    post(busy, "/update_weights_from_disk", model_path=str(READER))
    assert_as_started_with(busy, glance, plain, asked)


def test_update_from_a_folder_whose_names_are_the_heads_too(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    post(started.server, "/update_weights_from_disk", model_path=str(folders.renamed))
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


@contextlib.contextmanager
def weights_of(folder: Path, *servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            post(server, "/update_weights_from_disk", model_path=str(folder))
        yield
    finally:
        for server in servers:
            post(server, "/update_weights_from_disk", model_path=str(READER))


def test_update_to_other_weights_and_back(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    busy = started.server
    with weights_of(folders.other, busy, plain.server):
        ours = [busy.generate(request) for request in asked]
        assert_identical(ours, started.before)
        assert_identical(ours, [plain.server.generate(request) for request in asked])
    assert_as_started_with(busy, glance, plain, asked)


def test_update_from_a_folder_that_is_not_there(
    busy: Server, plain: Plain, asked: list[dict]
) -> None:
    post(busy, "/update_weights_from_disk", status=400, model_path="/nowhere")
    assert_identical([busy.generate(asked[0])], [plain.answer(asked[0])])


def load(server: Server, tensors: dict, selector: str) -> None:
    post(server, "/begin_weight_update", selector=selector)
    body = {"serialized_named_tensors": sent(tensors), "selector": selector}
    post(server, "/update_weights_from_tensor", **body)
    post(server, "/end_weight_update")


def test_tensors_for_all_are_the_targets(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    load(started.server, load_file(folders.renamed / WEIGHTS), "all")
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


def test_tensors_for_the_draft_are_the_heads(
    started: Started, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    """What is copied of the head's weights follows them: a head whose context K and V are wrong
    drafts nothing, and the answers stay."""
    head = load_file(HEAD / WEIGHTS)
    keys_and_values = {k: v for k, v in head.items() if "k_proj" in k or "v_proj" in k}
    try:
        load(started.server, {k: v.flip(0, 1) for k, v in keys_and_values.items()}, "draft")
        assert head_hash(started.server) != started.head
        ours = [started.server.generate(request) for request in asked]
        assert_identical(ours, plain.answers(asked))
        assert tokens_per_round(ours) < 2
    finally:
        load(started.server, keys_and_values, "draft")
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


@pytest.mark.parametrize("path", ["/release_memory_occupation", "/resume_memory_occupation"])
def test_memory_of_a_cpu_is_not_released(
    busy: Server, plain: Plain, asked: list[dict], path: str
) -> None:
    assert "CPU has no device memory" in post(busy, path, status=400)["error"]["message"]
    assert_identical([busy.generate(asked[0])], [plain.answer(asked[0])])


@contextlib.contextmanager
def answering(server: Server, asks: Sequence[Ask], at_once: int) -> Iterator[list[Future]]:
    """Answers that are under way: ``at_once`` of them have begun. No call of its own is made to
    wait for the rest."""
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
        post(busy, "/pause_generation", mode=mode)
        post(busy, "/flush_cache", status=flushed)
        if updated:
            post(busy, "/update_weights_from_disk", model_path=str(READER))
        time.sleep(0.5)
        assert not any(future.done() for future in under_way[:3])
        post(busy, "/continue_generation")
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
    with answering(busy, [(request, LONG) for request in requests], at_once=3) as under_way:
        post(busy, "/pause_generation", mode="abort")
        answers = results(under_way)
        post(busy, "/continue_generation")
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
            assert_identical(results(ahead), plain.answers(high, **short))
            assert not all(future.done() for future in under_way)
        answers = results(under_way)
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
