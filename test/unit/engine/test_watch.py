"""When the server says that drafting is of no use, by a clock of this file's own."""

from __future__ import annotations

import logging

import pytest
from sglang.srt.speculative.glance.engine.observe.watch import LEAST_ROUNDS, WINDOW_S, AcceptWatch


class Minute:
    """``watch`` fed with rounds that are evenly spread over a minute and end it. Steps of a power
    of two of a second add up exactly."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now, self.caplog = 1000.0, caplog
        self.watch = AcceptWatch("heads/mine", clock=lambda: self.now)
        caplog.set_level(logging.WARNING)

    def passes(self, rounds: list[list[int]], num_plain: int = 0) -> list[str]:
        """What was said. A round: correct drafts of each request."""
        self.caplog.clear()
        for correct in rounds:
            if num_plain:
                self.watch.exclude(num_plain)
            self.watch.note(correct)
            self.now += WINDOW_S / (len(rounds) - 1)
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def minute(caplog: pytest.LogCaptureFixture) -> Minute:
    return Minute(caplog)


BARREN = [[0, 0, 0, 0]] * 60 + [[1, 0, 0, 0]]


def test_a_barren_minute_is_told_once_in_one_line(minute):
    [line] = minute.passes(BARREN)
    assert "1.00 tokens a round" in line and "heads/mine" in line and "\n" not in line
    assert not minute.passes(BARREN)


def test_a_barren_minute_after_a_good_one_is_told(minute):
    assert not minute.passes([[3, 3, 3, 3]] * 61)
    assert minute.passes(BARREN)


def test_nothing_is_told_before_a_minute_has_passed(minute):
    for _ in range(10 * LEAST_ROUNDS):
        minute.watch.note([0])
    assert not minute.caplog.records


@pytest.mark.parametrize(("missing", "told"), [(0, True), (1, False)])
def test_few_rounds_say_nothing(minute, missing, told):
    rounds = [[0, 0, 0]] * 60 + [[0] * (LEAST_ROUNDS - 180 - missing)]
    assert bool(minute.passes(rounds)) == told


@pytest.mark.parametrize(("correct", "told"), [(9, True), (10, False), (11, False)])
def test_the_limit(minute, correct, told):
    """``correct`` drafts in every 100 request-rounds."""
    rounds = [[1] * correct + [0] * (100 - correct)] * 3
    assert bool(minute.passes(rounds)) == told


def test_rounds_that_could_take_one_token_only_are_left_out(minute):
    assert not minute.passes([[2, 0, 0, 0]] * 241, num_plain=3)
    assert minute.passes([[0, 0, 0, 0]] * 241, num_plain=3)
