"""More than fits: requests, prompts, turns, and clients that leave. Every slot comes back."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests as http
from builders.pictures import encode, form
from builders.prompts import picture
from harness import (
    SMALL_POOL,
    Plain,
    Rounds,
    Server,
    assert_identical,
    assert_no_slot_lost,
    chat,
)
from soak.check import GROWTH_MIB, PlainAnswers, Tally, grown_mib, one_wave

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}
LONG = {"max_new_tokens": 200, "ignore_eos": True}


@pytest.mark.slow
def test_sixty_four_requests_on_a_server_of_eight(
    glance: Server, plain: Plain, prompts: list[dict], rounds: Rounds
) -> None:
    requests = [*prompts, *reversed(prompts)][:64]
    answers = glance.generate_all(requests, parallel=64, **LENGTH)
    assert_identical(answers, plain.answers(requests, **LENGTH))
    assert max(map(len, rounds.new())) == 8
    assert_no_slot_lost(glance)


def left_after(server: Server, request: dict, rid: str, wait_s: float, by_request: bool) -> list:
    """Ask for a long answer; leave it ``wait_s`` later, by an abort or by hanging up. Its ids."""
    own = Server(server.url, server.process, server.log)
    ids: list[int] = []
    stream = own.stream({**request, "extra": {"rid": rid}}, **{**LONG, "max_new_tokens": 600})
    until = time.monotonic() + wait_s
    for answer in stream:
        ids = answer.ids
        if time.monotonic() < until:
            continue
        if not by_request:
            stream.close()
            break
        http.post(f"{server.url}/abort_request", json={"rid": rid}, timeout=60)
        until = float("inf")
    return ids


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
@pytest.mark.parametrize("by_request", [True, False], ids=["abort", "hang-up"])
def test_clients_that_leave_at_random_moments(
    glance: Server, plain: Plain, prompts: list[dict], seed: int, by_request: bool
) -> None:
    """Half of eight leave; what they had read, and all of the others' answers, are plain's."""
    rng = random.Random(seed)
    picked = rng.sample(prompts[:16], 8)
    stay, leave = picked[:4], picked[4:]
    with ThreadPoolExecutor(8) as pool:
        left = [
            pool.submit(
                left_after, glance, request, f"{seed}-{i}-{by_request}", rng.random(), by_request
            )
            for i, request in enumerate(leave)
        ]
        answers = list(pool.map(lambda request: glance.generate(request, **LONG), stay))
    assert_identical(answers, plain.answers(stay, **LONG))
    for request, each in zip(leave, left, strict=True):
        expected = plain.answer(request, **LONG).ids
        assert each.result()[: len(expected)] == expected[: len(each.result())]
    assert_no_slot_lost(glance)


def refused(server: Server, request: dict, **sampling: object) -> http.Response:
    body = {"text": request["text"], "sampling_params": {"temperature": 0, **sampling}}
    if request.get("images"):
        body["image_data"] = request["images"]
    return http.post(f"{server.url}/generate", json=body, timeout=60)


def test_pictures_larger_than_the_pool(small_pool: Server, plain: Plain) -> None:
    wide = [encode(form(80 + i, (256, 256))) for i in range(8)]  # 256 tokens each
    reply = refused(small_pool, picture("Read all lines.", *wide), max_new_tokens=4)
    assert reply.status_code == 400
    (got, most) = map(int, re.search(r"=> (\d+) >= (\d+)", reply.text).groups())
    assert got > 8 * 256 and SMALL_POOL // 2 < most <= SMALL_POOL
    one = picture("Read all lines.", wide[0])
    assert_identical([small_pool.generate(one)], [plain.answer(one)])
    assert_no_slot_lost(small_pool)


def test_an_answer_larger_than_the_pool_is_refused_and_the_others_served(
    small_pool: Server, plain: Plain, prompts: list[dict]
) -> None:
    """The prompt fits, its answer does not: SGLang gives up on the last request of a full pool."""
    asked = {"max_new_tokens": 3000, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(small_pool.generate, prompts[2], **asked)
        beside = small_pool.generate(prompts[0], **LENGTH)
    assert_identical([beside], [plain.answer(prompts[0], **LENGTH)])
    with pytest.raises(http.HTTPError, match="Out of memory"):
        large.result()
    assert_identical([small_pool.generate(prompts[0], **LENGTH)], [beside])
    assert_no_slot_lost(small_pool)


def turns(number: int, words: int) -> dict:
    return {"text": chat(" ".join(f"{number} {i}" for i in range(words)))}


def test_the_cache_is_emptied_between_turns(
    small_pool: Server, plain: Plain, questions: list[dict]
) -> None:
    """A second turn gives plain's tokens when the first is still cached, and when others' requests
    have taken its slots."""
    small_pool.flush_cache()
    first = questions[0]
    answer = small_pool.generate(first)
    assert_identical([answer], [plain.answer(first)])
    text = f"{first['text']}{answer.text}<|im_end|>\n<|im_start|>user\nAgain.<|im_end|>\n"
    second = {**first, "text": f"{text}<|im_start|>assistant\n"}
    cached = small_pool.generate(second)
    for number in range(6):  # each about half of the pool
        small_pool.generate(turns(number, 150), max_new_tokens=8)
    evicted = small_pool.generate(second)
    assert_identical([cached, evicted], [plain.answer(second)] * 2)
    assert cached.meta["cached_tokens"] > 40 > evicted.meta["cached_tokens"]
    assert_no_slot_lost(small_pool)


@pytest.mark.slow
def test_a_thousand_mixed_requests(small_pool: Server, plain: Plain) -> None:
    """Everything that the soak sends: no slot is lost, memory is flat, greedy ids are plain's."""
    tally, answers = Tally(seed=1000), PlainAnswers(plain.server)
    while tally.requests < 1000 and not tally.failures:
        one_wave(small_pool, answers, tally.seed + tally.waves, tally)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.compared_requests > 500 and tally.broken_off > 20
    assert grown_mib(tally.rss_mib) < GROWTH_MIB, tally.rss_mib
