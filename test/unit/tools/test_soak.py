"""The soak's own parts: traffic is its seed's, and what is wrong is found."""

from __future__ import annotations

import pytest
from soak.check import SETTLED_AFTER, Tally, grown_mib
from soak.traffic import Ask, Outcome, differences, wave

GREEDY = Ask("plain", {"text": "a"}, {"max_new_tokens": 4})
RIGHT = Outcome(GREEDY, ids=[[1, 2, 3]], text="abc", ended="stop")


def answer(**changes: object) -> Outcome:
    return Outcome(**{**vars(RIGHT), **changes})


def test_a_wave_is_its_seeds() -> None:
    assert wave(7, 40) == wave(7, 40) != wave(8, 40)


def test_traffic_is_of_every_kind() -> None:
    asks = wave(1, 600)
    assert {ask.end for ask in asks} == {"whole", "stream", "abort", "hang up", "refused"}
    assert len({ask.kind for ask in asks}) == 13
    assert {bool(ask.request.get("images")) for ask in asks} == {True, False}
    assert {ask.greedy for ask in asks} == {True, False}


def test_equal_answers_pass() -> None:
    assert differences(answer(), RIGHT) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": [[1, 2, 4]]}, "ids [1, 2, 4] not [1, 2, 3]"),
        ({"ids": [[1, 2]]}, "ids [1, 2] not"),
        ({"ids": [[1, 2]], "ended": "length"}, "ids [1, 2] not"),
        ({"ids": [[1, 2, 3, 4, 5]]}, "5 tokens, 4 allowed"),
        ({"text": "abd"}, "'abd' (stop) not 'abc' (stop)"),
        ({"ended": "length"}, "(length) not"),
        ({"error": "RuntimeError: 500"}, "GLANCE: RuntimeError: 500"),
        ({"ids": [[1, 9]], "ended": "abort"}, "ids [1, 9] not"),
    ],
)
def test_what_is_wrong_is_said(changes: dict, said: str) -> None:
    assert said in " ".join(differences(answer(**changes), RIGHT))


@pytest.mark.parametrize("ended", ["abort", "hung up"])
def test_a_broken_off_answer_may_be_short(ended: str) -> None:
    assert differences(answer(ids=[[1, 2]], text="ab", ended=ended), RIGHT) == []


def test_logprobs_are_compared() -> None:
    expected = answer(logprobs=[[-0.1, -0.2, -0.3]])
    assert differences(answer(logprobs=[[-0.1, -0.2, -0.3001]]), expected) == []
    wrong = differences(answer(logprobs=[[-0.1, -0.5, -0.3]]), expected)
    assert wrong == ["a log-probability is 0.3 off"]


def test_drawn_answers_are_only_counted() -> None:
    drawn = Ask("drawn", {"text": "a"}, {"max_new_tokens": 2, "temperature": 1.0})
    assert differences(answer(ask=drawn, ids=[[8, 9]]), Outcome(drawn)) == []
    assert differences(answer(ask=drawn, ids=[[8, 9, 7]]), Outcome(drawn)) != []


def test_a_tally_counts_divergences_and_names_the_seed() -> None:
    tally = Tally(seed=5)
    tally.add(answer(), RIGHT, 5)
    tally.add(answer(ids=[[1, 2, 9]]), RIGHT, 6)
    assert (tally.requests, tally.compared_requests, tally.compared_tokens) == (2, 2, 6)
    assert tally.divergences == 1
    assert len(tally.failures) == 1 and tally.failures[0].startswith("SEED=6: ")


def test_growth_is_taken_after_the_start_has_settled() -> None:
    start = [500.0] * SETTLED_AFTER
    assert grown_mib(start) == 0
    assert grown_mib(start + [1000.0, 1001.0] * 6) <= 1
    assert grown_mib(start + [1000.0 + 10 * i for i in range(12)]) == 90
    assert grown_mib(start + [1000.0] * 11 + [2000.0]) == 0  # one spike is no leak
