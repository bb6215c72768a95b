"""SGLang's own numbers on speculation are right for trees."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from harness import (
    Rounds,
    Server,
    chat_body,
    whole_chat,
)

LENGTH = {"max_new_tokens": 64, "ignore_eos": True}


def gauge(server: Server, name: str) -> float:
    found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", server.get("/metrics").text, re.MULTILINE)
    assert found is not None, f"/metrics has no {name}"
    return float(found[1])


def logged_accept_lens(server: Server, offset: int) -> list[float]:
    """One decode log line a round."""
    with server.log.open() as file:
        file.seek(offset)
        return [float(x) for x in re.findall(r"Decode batch.*accept len: ([\d.]+)", file.read())]


def settled(read: Callable[[], object], expected: object, patience_s: float = 5) -> None:
    """Assert that ``read()`` becomes ``expected`` in time."""
    deadline = time.monotonic() + patience_s
    while read() != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read() == expected


@pytest.mark.parametrize("number", [0, 3, 9, 14])
def test_one_request_counted_four_ways(
    glance: Server, questions: list[dict], rounds: Rounds, number: int
) -> None:
    """The worker's rounds, the reply's meta data, the log and the gauge agree.

    ``spec_accept_length`` of a reply is SGLang's completion tokens / rounds, prefill's token
    included and an overshooting last run cut; log and gauge count what a round committed.
    """
    offset = glance.log.stat().st_size
    answer = glance.generate(questions[number], **LENGTH)
    accepted = [lens[0] for lens in rounds.new()]
    assert all(len(answer.ids) == 64 and 1 <= length <= 16 for length in accepted)

    meta = answer.meta
    assert meta["spec_verify_ct"] == len(accepted)
    assert meta["spec_num_correct_drafts"] == sum(accepted) - len(accepted)
    assert meta["spec_accept_length"] == pytest.approx(64 / len(accepted))
    histogram = meta["spec_correct_drafts_histogram"]
    counted = {length: n for length, n in enumerate(histogram) if n}
    assert counted == {n: accepted.count(n + 1) for n in {length - 1 for length in accepted}}
    # Every run is committed whole but the last, which the limit cuts.
    assert sum(accepted[:-1]) < 63 <= sum(accepted)

    # The log and the gauge are written after the reply is sent.
    settled(lambda: logged_accept_lens(glance, offset), accepted)
    settled(lambda: gauge(glance, "sglang:spec_accept_length"), accepted[-1])


def test_average_of_a_batch(glance: Server, questions: list[dict], rounds: Rounds) -> None:
    offset = glance.log.stat().st_size
    glance.generate_all(questions[:8], parallel=8, **LENGTH)
    means = [sum(lens) / len(lens) for lens in rounds.new()]
    assert logged_accept_lens(glance, offset) == pytest.approx(means, abs=0.0051)


def test_usage_of_the_chat_endpoint(glance: Server, questions: list[dict]) -> None:
    body = chat_body(questions[0], "Read the document.")
    reply = whole_chat(glance, body)
    native = glance.generate(questions[0])
    assert reply["choices"][0]["message"]["content"] == native.text
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == len(native.ids)
    assert reply["usage"]["prompt_tokens"] == native.meta["prompt_tokens"]
