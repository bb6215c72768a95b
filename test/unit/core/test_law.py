"""The law's formulas against sums over every run, and its diagnostics against loops."""

from __future__ import annotations

import math

import pytest
import torch
from sglang.srt.speculative.glance.core import law

LENGTHS = (1, 2, 7, 15, 31)
ODDS = (-30.0, -3.0, -0.5, 0.0, 0.4, 2.0, 9.0, 20.0, 36.0)


def summed(p: float, longest: int) -> float:
    """Mean length of a run of agreements, each with probability p, that ends at ``longest``."""
    lengths = [k * p**k * (1 - p) for k in range(longest)]
    return math.fsum([*lengths, longest * p**longest])


@pytest.mark.parametrize("longest", LENGTHS)
@pytest.mark.parametrize("x", ODDS)
def test_v2_is_the_mean_of_a_run_that_ends(x: float, longest: int) -> None:
    p = 1 / (1 + math.exp(-x))
    got = law.expected_truncated(torch.tensor([x], dtype=torch.float64), longest)
    assert float(got) == pytest.approx(summed(p, longest), rel=1e-12)
    if x < 9:
        assert float(got) == pytest.approx(p * (1 - p**longest) / (1 - p), rel=1e-9)


@pytest.mark.parametrize("longest", LENGTHS)
@pytest.mark.parametrize("x", ODDS)
def test_v1_is_the_mean_of_an_endless_run_capped(x: float, longest: int) -> None:
    p = 1 / (1 + math.exp(-x))
    got = float(law.expected_capped(torch.tensor([x], dtype=torch.float64), longest))
    assert got == pytest.approx(min(math.exp(x), longest), rel=1e-12)
    if x <= 0.4:  # the endless run, summed until it is below a rounding
        assert min(summed(p, 500), longest) == pytest.approx(got, rel=1e-9)


@pytest.mark.parametrize("form", law.FORMS)
def test_no_overflow_and_no_cancellation(form: str) -> None:
    x = torch.tensor([-800.0, 39.9, 40.1, 800.0, float("inf")], dtype=torch.float64)
    assert law.FORMS[form](x, 15).tolist() == pytest.approx([0, 15, 15, 15, 15], abs=1e-12)


def test_the_forms_meet_where_runs_are_short() -> None:
    x = law.log_odds(torch.linspace(0, 6, 50, dtype=torch.float64), -3.0, 0.7)
    one, two = (form(x, 15) for form in law.FORMS.values())
    assert torch.allclose(one, two, rtol=1e-9)
    assert float(law.log_odds(torch.tensor(2.0), 1.0, 0.5)) == 0.0


def slow_entropy(row: list[float]) -> float:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    total = math.fsum(weights)
    return -math.fsum(w / total * math.log(w / total) for w in weights if w > 0)


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 40.0, 500.0])
def test_entropy(scale: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 300) * scale
    expected = [slow_entropy(row) for row in logits.double().tolist()]
    assert law.entropy(logits).tolist() == pytest.approx(expected, rel=2e-5, abs=2e-6)


def test_entropy_of_the_kinds_of_logits_that_come() -> None:
    logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    logits[0, :60] = -torch.inf  # banned tokens
    logits[1, 1:] = -torch.inf
    logits[2] = 7.0
    kept = logits.clone()
    got = law.entropy(logits)
    assert torch.equal(logits, kept)
    assert float(got[0]) == pytest.approx(slow_entropy(logits[0, 60:].tolist()), rel=1e-5)
    assert float(got[1]) == 0.0
    assert float(got[2]) == pytest.approx(math.log(64), rel=1e-6)
    assert law.entropy(logits[3].bfloat16()).dtype == torch.float32


def test_bins_hold_equal_numbers_and_keep_ties_together() -> None:
    values = torch.randperm(1000, generator=torch.Generator().manual_seed(2)).double()
    bin_of = law.bins(values, 10)
    assert torch.bincount(bin_of).tolist() == [100] * 10
    assert torch.equal(bin_of, (values // 100).long())
    tied = torch.tensor([0.0] * 70 + list(range(1, 31)), dtype=torch.float64)
    bin_of = law.bins(tied, 10)
    assert len(bin_of[:70].unique()) == 1 and len(bin_of.unique()) == 4
    assert bin_of.unique().tolist() == [0, 1, 2, 3]


def test_shares_of_variance() -> None:
    generator = torch.Generator().manual_seed(3)
    entropies = torch.rand(2000, generator=generator, dtype=torch.float64)
    steps = torch.where(entropies < 0.5, 4.0, 1.0).double()
    assert law.r2(steps, steps) == 1.0
    assert law.r2(steps, steps.mean().expand(2000)) == pytest.approx(0.0)
    assert law.r2(steps, 5 - steps) < -2
    assert math.isnan(law.r2(torch.ones(9), torch.ones(9)))
    # Half of the variance is noise: the best function of the entropy explains the other half.
    noisy = steps + 1.5 * torch.randn(2000, generator=generator, dtype=torch.float64)
    assert law.ceiling(entropies, noisy) == pytest.approx(0.5, abs=0.05)
    assert law.r2_of_deciles(entropies, noisy, steps) > 0.98
    assert law.ceiling(entropies, noisy) == pytest.approx(between(entropies, noisy, 50), rel=1e-9)


def between(entropies: torch.Tensor, values: torch.Tensor, number: int) -> float:
    """Between-bin share of the variance, bin by bin over the sorted rounds."""
    ordered = values[entropies.argsort()].tolist()
    size, mean = len(ordered) // number, math.fsum(ordered) / len(ordered)
    groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    inside = math.fsum(len(g) * (math.fsum(g) / len(g) - mean) ** 2 for g in groups)
    return inside / math.fsum((value - mean) ** 2 for value in ordered)


GOOD = {
    "b1": 0.6,
    "rank_correlation": -0.3,
    "rank_p": 1e-9,
    "round_r2": 0.05,
    "decile_r2": 0.8,
    "best_r2": 0.2,
    "mean_drafts": 2.0,
}


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({}, []),
        ({"b1": 0.0}, ["slope"]),
        ({"b1": -1.0}, ["slope"]),
        ({"rank_correlation": 0.1}, ["rank"]),
        ({"rank_p": 0.05}, ["rank"]),
        ({"decile_r2": 0.49}, ["fit"]),
        ({"decile_r2": 0.49, "round_r2": 0.1}, []),
        ({"decile_r2": float("nan")}, ["fit"]),
        ({"mean_drafts": 0.14}, ["range"]),
        ({"b1": law.MAX_SLOPE}, ["range"]),
    ],
)
def test_conditions(change: dict, failed: list[str]) -> None:
    held = law.conditions(**{**GOOD, **change})
    assert list(held) == ["slope", "rank", "fit", "range"]
    assert [name for name, holds in held.items() if not holds] == failed
