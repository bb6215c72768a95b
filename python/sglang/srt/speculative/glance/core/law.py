"""The entropy law: how many drafts a round accepts, given the target's uncertainty at its root.

H is the entropy, in nats, of the target's next-token distribution at the root. The law takes each
draft to agree with the target with a probability p, independent of the others, and

    logit p = b0 - b1 H                                        (GLANCE, arXiv 2609.00355)

`a` is `num_correct_drafts`: accepted drafts of a round without the bonus token, 0..L, where L is
`max_drafts`, the drafted tokens of a block. Two forms of its mean were published.

    v1   E[a|H] = min(p / (1 - p), L)             the mean of an endless run of agreements, capped
    v2   E[a|H] = p (1 - p^L) / (1 - p)           the mean of a run that ends at L

With x = logit p, p / (1 - p) is e^x, and v2's is the sum of p^k over k = 1..L.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

MIN_ROUNDS = 30  # fewer are not fitted; as published
MAX_SLOPE = 25.0  # b1 is clamped there; as published
DECILES = 10
CEILING_BINS = 50

# From here on both forms equal L to the last bit of a double, for any block; e^x does not overflow.
_SATURATED = 40.0


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Nats of softmax(`logits [..., V]`), computed in float32 -> `[...] float32`."""
    log_p = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    log_p.clamp_(min=torch.finfo(log_p.dtype).min)  # a banned token's is -inf, and 0 * -inf is NaN
    return -torch.linalg.vecdot(log_p.exp(), log_p)


def log_odds(entropies: torch.Tensor, b0: float, b1: float) -> torch.Tensor:
    """logit p at each of `entropies`."""
    return b0 - b1 * entropies


def expected_capped(x: torch.Tensor, max_drafts: int) -> torch.Tensor:
    """v1's E[a|H] at log-odds `x`."""
    return x.clamp(max=_SATURATED).exp().clamp(max=float(max_drafts))


def expected_truncated(x: torch.Tensor, max_drafts: int) -> torch.Tensor:
    """v2's E[a|H] at log-odds `x`; no difference of near-equal numbers where p is close to 1."""
    x = x.clamp(max=_SATURATED)
    log_p = torch.nn.functional.logsigmoid(x)
    return x.exp() * -torch.expm1(max_drafts * log_p)


FORMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "v1": expected_capped,
    "v2": expected_truncated,
}


def bins(entropies: torch.Tensor, number: int) -> torch.Tensor:
    """The quantile bin `[n] int64` of each of `entropies [n]`, numbered from 0 without gaps. Equal
    entropies share a bin, so there may be fewer than `number`."""
    steps = torch.arange(1, number, dtype=entropies.dtype) / number
    edges = torch.quantile(entropies, steps)
    return torch.unique(torch.bucketize(entropies, edges, right=True), return_inverse=True)[1]


def bin_means(bin_of: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Mean of `values [n]` in each bin."""
    sums = values.new_zeros(int(bin_of.max()) + 1).scatter_add_(0, bin_of, values)
    return sums / torch.bincount(bin_of)


def r2(values: torch.Tensor, predicted: torch.Tensor) -> float:
    """Share of the variance of `values` that `predicted` explains; negative where their mean
    predicts better, NaN where they do not vary."""
    spread = (values - values.mean()).square().sum()
    return float("nan") if spread == 0 else float(1 - (values - predicted).square().sum() / spread)


def r2_of_deciles(entropies: torch.Tensor, drafts: torch.Tensor, predicted: torch.Tensor) -> float:
    """:func:`r2` on the ten points (mean of `drafts`, mean of `predicted`) of the deciles of
    `entropies`. The curve is averaged over a decile's rounds as the drafts are: its value at their
    mean entropy lies below that wherever the curve bends upwards."""
    bin_of = bins(entropies, DECILES)
    return r2(bin_means(bin_of, drafts), bin_means(bin_of, predicted))


def ceiling(entropies: torch.Tensor, drafts: torch.Tensor) -> float:
    """Share of the drafts' variance that lies between 50 bins of the entropy: what the best
    function of H would explain, a little more with few rounds a bin."""
    bin_of = bins(entropies, CEILING_BINS)
    return r2(drafts, bin_means(bin_of, drafts)[bin_of])


def conditions(
    *,
    b1: float,
    rank_correlation: float,
    rank_p: float,
    round_r2: float,
    decile_r2: float,
    best_r2: float,
    mean_drafts: float,
) -> dict[str, bool]:
    """The four published conditions for the law to hold. A slope at its clamp fails the fourth:
    it has no value that could be reported. `best_r2`: :func:`ceiling`."""
    return {
        "slope": b1 > 0,
        "rank": rank_correlation < 0 and rank_p < 0.05,
        "fit": decile_r2 >= 0.5 or round_r2 >= 0.5 * best_r2,
        "range": mean_drafts >= 0.15 and b1 < MAX_SLOPE,
    }
