"""Requests that no client should send: refused with a reason, or answered as plain decoding would.

The server lives through all of them, and a request beside each tenth keeps its answer.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import requests as http
from builders.hostile import cases
from builders.hostile_case import Case
from harness import Plain, Server, assert_identical, assert_no_slot_lost

TIMEOUT_S = 60
CANARY_EVERY = 10
CASES = cases()
# SGLang's scheduler dies of these, whatever the algorithm; GLANCE refuses them.
FATAL = frozenset(
    {
        "body-completion-outside",
        "field-processor",
        "chat-logprobs-huge",
        "logprob-ids-huge",
        "logprob-ids-negative",
        "logprob-ids-outside",
        "logprob-start-negative",
        "logprob-top-huge",
        "logprob-top-past-vocabulary",
        "ids-empty",
        "ids-empty-nested",
        "ids-far-outside",
        "ids-int32",
        "ids-negative",
        "ids-one-empty",
        "ids-outside",
        "ids-picture-outside",
        "text-empty",
        "text-is-list-with-empty",
        "value-stop_token_ids-many-min",
        "value-stop_token_ids-negative-min",
        "value-stop_token_ids-outside-min",
    }
)
GUARDED = ("prompt is empty: it", "input_ids: got", "stop_token_ids with min_new_tokens: got")
# Plain decoding serves these; with GLANCE they are refused (docs/limits.md).
REFUSED = frozenset(
    {
        "chat-logprobs-negative",
        "field-hidden-states",
        "field-scored-places",
        "logprob-top-negative",
        "value-beam_width-2",
    }
)


# SGLang fails at these before it reads a request's parts, in its grammar backend, by a fault in its
# code (a picture's token typed beside a picture), or because the machine fails (a disk that cannot
# be read): HTTP 500, with GLANCE as without.
FAILED = frozenset(
    {
        "count-pad-typed-beside-picture",
        "count-pads-typed-beside-picture",
        "count-video-typed-beside-picture",
        "url-path-failing-disk",
        "type-sampling_params-list",
        "field-rid-list",
        "body-chat-list",
        "grammar-schema-endless-ref",
        "grammar-ebnf-endless",
    }
)


class Outcome(NamedTuple):
    status: int
    reason: str  # of a refusal
    answers: list  # what is compared


def sent(server: Server, case: Case) -> Outcome:
    """On a connection of its own: the server may close one after a body it has not read."""
    headers = {"Content-Type": "application/json"}
    url = server.url + case.path
    reply = http.post(url, data=case.data, headers=headers, timeout=TIMEOUT_S)
    if not reply.ok:
        return Outcome(reply.status_code, reply.text, [])
    return Outcome(reply.status_code, "", answers(reply.text, drawn(case)))


def drawn(case: Case) -> bool:
    """Whether the answer's tokens are random, so that only their number can be compared."""
    body = json.loads(case.data)
    params = body.get("sampling_params", body if "temperature" in body else None)
    return not isinstance(params, dict) or params.get("temperature") != 0


def answers(text: str, random: bool) -> list:
    """What of a reply must equal plain decoding's."""
    if text.startswith("data:"):
        rows = [json.loads(x[5:]) for x in text.splitlines() if x.startswith("data: {")]
    else:
        rows = json.loads(text)
    out = []
    for row in rows if isinstance(rows, list) else [rows]:
        if "choices" in row:
            said = [(c.get("message") or c.get("text"), c["finish_reason"]) for c in row["choices"]]
            out.append(len(said) if random else said)
        elif "error" in row:
            out.append(("error", row["error"].get("code")))
        else:
            meta = row["meta_info"]
            counts = (meta["prompt_tokens"], meta["finish_reason"]["type"])
            whole = (*counts, row["output_ids"], row["text"])
            out.append(meta["prompt_tokens"] if random else whole)
    return out


def test_there_are_enough() -> None:
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in CASES} >= FATAL | REFUSED | FAILED


@pytest.fixture(scope="module")
def canary(plain: Plain, questions: list[dict]) -> tuple[dict, list]:
    return questions[0], [plain.answer(questions[0])]


@pytest.mark.parametrize(
    ("number", "case"), [pytest.param(i, case, id=case.name) for i, case in enumerate(CASES)]
)
def test_refused_or_answered_as_plainly(
    glance: Server, plain: Plain, canary: tuple[dict, list], number: int, case: Case
) -> None:
    beside = number % CANARY_EVERY == 0 or case.name in FATAL
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(glance.generate, canary[0]) if beside else None
        got = sent(glance, case)
        if kept is not None:
            assert_identical([kept.result()], canary[1])
    assert glance.process.poll() is None, glance.tail()
    if case.name in FATAL or case.name in REFUSED:
        assert got.status == 400 and len(got.reason) > 20, got
        return
    # Named above first: plain decoding would not survive it.
    assert not any(said in got.reason for said in GUARDED), got
    expected = sent(plain.server, case)
    if expected.status >= 500 and case.name not in FAILED:
        assert got.status == 400 and "cannot be read" in got.reason, got
        return
    assert got.status == expected.status, (got, expected)
    assert got.status < 500 or case.name in FAILED
    assert got.answers == expected.answers
    assert got.status == 200 or got.reason


def test_no_slot_is_lost_by_any_of_them(glance: Server) -> None:
    assert_no_slot_lost(glance)
