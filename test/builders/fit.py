"""Whether draws come from a distribution: a chi-square test and the total variation distance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

P_LIMIT = 1e-5  # a right sampler fails one run in 100,000
FEWEST = 5.0  # cells that expect fewer draws are pooled: the chi-square law is asymptotic


@dataclass(frozen=True)
class Fit:
    """``distance``: total variation between draws and distribution; ``distance_limit``: what a
    right sampler exceeds about as rarely as it falls below ``P_LIMIT``."""

    p_value: float
    distance: float
    distance_limit: float
    num_cells: int
    num_draws: int

    @property
    def by_chi_square(self) -> bool:
        return self.p_value >= P_LIMIT

    @property
    def by_distance(self) -> bool:
        return self.distance <= self.distance_limit


def fit(draws: Iterable[Hashable], distribution: dict[Hashable, float]) -> Fit:
    """Draws outside the distribution's support share one cell, which expects the mass that the
    distribution leaves to 1 (rounding, or what was not enumerated)."""
    counted = Counter(draws)
    cells = list(distribution)
    expected = np.array([distribution[cell] for cell in cells])
    observed = np.array([counted[cell] for cell in cells], dtype=float)
    num = sum(counted.values())
    expected = np.append(expected, max(0.0, 1 - expected.sum()))
    expected /= expected.sum()
    observed = np.append(observed, num - observed.sum())
    distance = abs(observed / num - expected).sum() / 2
    p_value, num_cells = _chi_square(observed, expected * num)
    return Fit(p_value, float(distance), _distance_limit(expected, num), num_cells, num)


def _chi_square(observed: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    if observed[expected < 1e-9].sum() > 0:
        return 0.0, len(expected)  # what cannot be drawn was drawn
    small = expected < FEWEST
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < FEWEST and len(expected) > 1:  # still few: to its neighbour
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    if len(expected) < 2:
        raise ValueError(f"{observed.sum():.0f} draws over one cell test nothing")
    return float(stats.chisquare(observed, expected).pvalue), len(expected)


def _distance_limit(probs: np.ndarray, num: int) -> float:
    """Mean and spread of a right sampler's distance, simulated; 4.3 standard deviations above."""
    draws = np.random.default_rng(0).multinomial(num, probs, size=500)
    distances = abs(draws / num - probs).sum(1) / 2
    return float(distances.mean() + 4.3 * distances.std())
