"""Requests whose controls look at their own output: ids equal to plain decoding, in few rounds.

The plain server runs without overlap scheduling, where a penalty counts every token put out so far.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from builders.floors import ACCEPT_LEN_BENT, ACCEPT_LEN_NO_STOP
from builders.processors import alternating, penalising
from builders.shipped import EOS, token
from harness import (
    Plain,
    Rounds,
    Server,
    ask_together,
    assert_identical,
    tokens_per_round,
)

LENGTH = {"max_new_tokens": 48, "ignore_eos": True}
PENALTIES = {
    "frequency": {"frequency_penalty": 0.7},
    "negative_frequency": {"frequency_penalty": -0.5},
    "presence": {"presence_penalty": 1.2},
    "repetition": {"repetition_penalty": 1.3},
    "repetition_below_1": {"repetition_penalty": 0.8},
    "frequency_and_presence": {"frequency_penalty": 0.4, "presence_penalty": 0.6},
}
REASON = "custom_logit_processor"
STOP, LARGE = token("."), token(" large")


@pytest.fixture(scope="module")
def mixed(prompts: list[dict]) -> list[dict]:
    """Pictures and texts."""
    chosen = [prompts[number] for number in (0, 2, 3, 5)]
    assert [bool(request.get("images")) for request in chosen] == [True, False, True, False]
    return chosen


def plain_rounds(server: Server, reason: str = REASON) -> int:
    metrics = server.get("/metrics").text
    found = re.search(rf'glance_plain_rounds_total{{[^}}]*reason="{reason}"}} (\S+)', metrics)
    assert found is not None, "/metrics has no sglang:glance_plain_rounds_total"
    return int(float(found[1]))


@pytest.mark.parametrize("case", PENALTIES)
def test_penalised_beside_greedy(
    served: Server, plain: Plain, mixed: list[dict], case: str
) -> None:
    """In one batch with requests that have no penalty, which keep their solo ids."""
    before = plain_rounds(served)
    sampling = LENGTH | PENALTIES[case]
    asks = [(request, sampling) for request in mixed] + [(request, LENGTH) for request in mixed]
    answers = ask_together(served, asks)
    assert_identical(answers[4:], plain.answers(mixed, **LENGTH))
    assert_identical(answers[:4], plain.answers(mixed, **sampling))
    assert any(a.ids != b.ids for a, b in zip(answers[:4], answers[4:]))  # it made a difference
    assert tokens_per_round(answers[:4]) > ACCEPT_LEN_BENT
    assert plain_rounds(served) == before


def test_each_request_with_a_penalty_of_its_own(
    glance: Server, plain: Plain, mixed: list[dict]
) -> None:
    asks = [(mixed[n % 4], LENGTH | asked) for n, asked in enumerate(PENALTIES.values())]
    asks += [
        (mixed[0], LENGTH),
        (mixed[3], LENGTH | {"logit_bias": {str(STOP): -3.0, str(LARGE): 2.5}}),
    ]
    assert_identical(ask_together(glance, asks), plain.answers_to(asks))


def test_additive_and_scaling_penalties_together(
    served: Server, plain: Plain, mixed: list[dict]
) -> None:
    """Their order in plain decoding without overlap is an accident of addresses, so that the
    reference is their definition, as a custom logit processor of plain decoding."""
    both = {"frequency_penalty": 0.3, "presence_penalty": 0.4, "repetition_penalty": 1.2}
    answers = ask_together(served, [(request, LENGTH | both) for request in mixed])
    processor = {"custom_logit_processor": penalising()}
    defined = [{**request, "extra": processor} for request in mixed]
    params = {"frequency": 0.3, "presence": 0.4, "repetition": 1.2}
    assert_identical(answers, plain.answers(defined, custom_params=params, **LENGTH))
    assert tokens_per_round(answers) > ACCEPT_LEN_BENT


@pytest.mark.parametrize("stops", [[], [STOP, token(" a"), LARGE]], ids=["eos", "stop_token_ids"])
def test_no_stop_before_min_new_tokens(
    served: Server, plain: Plain, mixed: list[dict], stops: list[int]
) -> None:
    """Stop tokens are ruled out inside a branch, up to the very token from which they may come."""
    own = {"stop_token_ids": stops} if stops else {}
    free = plain.answers(mixed, max_new_tokens=64, **own)
    assert min(len(answer.ids) for answer in free) < 30
    for least in (9, 30):
        asked = {"max_new_tokens": 64, "min_new_tokens": least, **own}
        answers = ask_together(served, [(request, asked) for request in mixed])
        assert_identical(answers, plain.answers(mixed, **asked))
        assert min(len(answer.ids) for answer in answers) >= least
        assert tokens_per_round(answers) > ACCEPT_LEN_NO_STOP


def test_min_new_tokens_with_penalties_and_a_bias(
    served: Server, plain: Plain, mixed: list[dict]
) -> None:
    asked = {"min_new_tokens": 20, "frequency_penalty": 0.5, "presence_penalty": -0.3}
    asked |= {"logit_bias": {str(EOS): 6.0, str(STOP): -2.0}, "max_new_tokens": 48}
    answers = ask_together(served, [(request, asked) for request in mixed])
    assert_identical(answers, plain.answers(mixed, **asked))


def test_logit_bias(served: Server, plain: Plain, mixed: list[dict]) -> None:
    unbiased = plain.answers(mixed, **LENGTH)
    (common, _), *_ = Counter(token for answer in unbiased for token in answer.ids).most_common()
    biased = LENGTH | {"logit_bias": {str(common): -100.0, str(STOP): -2.0, str(LARGE): 3.0}}
    answers = ask_together(served, [(r, biased) for r in mixed] + [(r, LENGTH) for r in mixed])
    assert_identical(answers[:4], plain.answers(mixed, **biased))
    assert_identical(answers[4:], unbiased)
    assert all(common not in answer.ids for answer in answers[:4])
    assert tokens_per_round(answers[:4]) > ACCEPT_LEN_BENT


def test_custom_logit_processors_run_plainly_and_are_counted(
    glance: Server, plain: Plain, mixed: list[dict], rounds: Rounds
) -> None:
    """One token a round for them, and for them alone."""
    before = plain_rounds(glance)
    extra = {"extra": {"custom_logit_processor": alternating()}}
    custom = [({**request, **extra}, LENGTH | {"custom_params": {}}) for request in mixed]
    answers = ask_together(glance, custom + [(request, LENGTH) for request in mixed])
    assert_identical(answers[:4], plain.answers_to(custom))
    assert_identical(answers[4:], plain.answers(mixed, **LENGTH))
    assert all(answer.ids[n] % 2 == 0 for answer in answers[:4] for n in range(1, 48, 2))
    assert [answer.rounds for answer in answers[:4]] == [47] * 4
    assert tokens_per_round(answers[4:]) > ACCEPT_LEN_BENT
    assert plain_rounds(glance) - before == 4 * 47
    with rounds.path.open() as file:
        file.seek(rounds.offset)
        assert sum(int(re.search(r'"num_plain":(\d+)', line)[1]) for line in file) == 4 * 47


@pytest.mark.slow
def test_retracted_requests_keep_their_penalties(
    small_pool: Server, plain: Plain, prompts: list[dict]
) -> None:
    """They are prefilled anew with what they have put out, which goes on counting."""
    kinds = [{"frequency_penalty": 0.3}, {"repetition_penalty": 1.15}]
    asks = [
        (request, {"max_new_tokens": 240, "ignore_eos": True} | kinds[n % 2])
        for n, request in enumerate(prompts[:8])
    ]
    answers = ask_together(small_pool, asks)
    assert sum(answer.meta["num_retractions"] for answer in answers) > 0
    assert_identical(answers, plain.answers_to(asks))
