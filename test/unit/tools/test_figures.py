"""Accept length, rates, ratios and the split, against figures worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from sglang.glance.measure.figures import (
    Interval,
    accept_length,
    decode_tok_s,
    end_to_end_tok_s,
    identical,
    prompts,
    round_ms,
    select,
    speedup,
    split_ms,
    step_ms,
)


def test_accept_length_pools_rounds_and_leaves_out_the_prefill_token(make_row: Callable) -> None:
    rows = [make_row("glance", rounds=1), make_row("glance", ids=[1, 2, 3], rounds=3)]
    assert accept_length(rows) == (4 + 2) / (1 + 3)


def test_accept_length_without_a_round_is_not_a_number(make_row: Callable) -> None:
    assert math.isnan(accept_length([make_row(ids=[1])]))


def test_rates_divide_by_decode_time_and_by_all_time(make_row: Callable) -> None:
    own = prompts([make_row(), make_row(prompt=1, ids=[1, 2], total_s=0.6, group=1)]).values()
    assert decode_tok_s(own) == pytest.approx((4 + 1) / (0.4 + 0.1))
    assert end_to_end_tok_s(own) == pytest.approx((5 + 2) / (0.9 + 0.6))
    assert step_ms(own) == pytest.approx(1e3 * 0.5 / 5)


def test_a_prompt_is_the_median_of_its_repeats(make_row: Callable) -> None:
    rows = [make_row(repeat=i, total_s=total) for i, total in enumerate((0.9, 5.0, 0.7))]
    (own,) = prompts(rows).values()
    assert own.decode_s == pytest.approx(0.4)
    assert own.rate_s == pytest.approx(0.9)


def test_requests_in_flight_together_share_their_group_s_time(make_row: Callable) -> None:
    rows = [make_row(prompt=i, batch=4, group_s=2.0) for i in range(4)]
    assert end_to_end_tok_s(prompts(rows).values()) == pytest.approx(4 * 5 / 2.0)


def test_round_ms_divides_decode_time_by_rounds(two_arms: list) -> None:
    own = prompts(select(two_arms, arm="glance")).values()
    assert round_ms(own) == pytest.approx(1e3 * (0.1 + 0.3) / 4)


def test_split_adds_up_to_the_round(two_arms: list) -> None:
    rows = select(two_arms, arm="glance")
    split = split_ms(rows)
    assert split["draft"] == pytest.approx(2 * 10 / 4)
    assert split["verify"] == pytest.approx(2 * 30 / 4)
    assert split["engine"] == pytest.approx(100 - 2 * 44 / 4)
    assert sum(split.values()) == pytest.approx(round_ms(prompts(rows).values()))


def test_split_takes_each_phase_s_median_over_repeats(make_row: Callable, laps: Callable) -> None:
    rows = [
        make_row("glance", repeat=i, rounds=1, logged=1, laps_ms=laps(verify=ms))
        for i, ms in enumerate((30.0, 500.0, 40.0))
    ]
    assert split_ms(rows)["verify"] == 40.0


@pytest.mark.parametrize("wrong", [{"batch": 4}, {"logged": 1}])
def test_split_refuses_rows_it_cannot_split(
    wrong: dict, make_row: Callable, laps: Callable
) -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split_ms([make_row("glance", **{"rounds": 2, "logged": 2, "laps_ms": laps(), **wrong})])


def test_split_of_unlogged_rows_is_empty(make_row: Callable) -> None:
    assert split_ms([make_row("glance", rounds=2)]) == {}


def test_speedup_pairs_prompts_and_its_interval_holds_the_value(two_arms: list) -> None:
    ours, base = (prompts(select(two_arms, arm=arm)) for arm in ("glance", "plain"))
    ratio = speedup(decode_tok_s, ours, base)
    assert ratio.value == pytest.approx((6 / 0.4) / (6 / 0.6))
    # Two prompts alone give 4x and 2/3 x: the resampled ratios lie between.
    assert ratio.low == pytest.approx(2 / 3)
    assert ratio.high == pytest.approx(4)


def test_speedup_of_one_prompt_has_no_interval(make_row: Callable) -> None:
    own = prompts([make_row()])
    ratio = speedup(decode_tok_s, own, own)
    assert ratio.value == 1 and math.isnan(ratio.low)
    assert isinstance(ratio, Interval)


def test_speedup_refuses_arms_with_different_prompts(make_row: Callable) -> None:
    with pytest.raises(ValueError, match="different prompts"):
        speedup(decode_tok_s, prompts([make_row()]), prompts([make_row(prompt=1)]))


def test_identical_compares_ids_prompt_by_prompt(make_row: Callable) -> None:
    plain = [make_row(), make_row(prompt=1, ids=[6])]
    ours = [make_row("glance"), make_row("glance", prompt=1, ids=[7]), make_row("glance", prompt=2)]
    assert identical(ours, plain) == (1, 3)


def test_identical_counts_a_wavering_reference_as_different(make_row: Callable) -> None:
    plain = [make_row(), make_row(repeat=1, ids=[1])]
    assert identical([make_row("glance")], plain) == (0, 1)


def test_select_takes_every_task_for_all(two_arms: list) -> None:
    assert len(select(two_arms, task="all")) == 4
    assert {row.task for row in select(two_arms, task="caption")} == {"caption"}
