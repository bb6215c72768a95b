"""The law fitted to rounds: nonlinear least squares on single rounds, and how good it is.

Formulas are in ``sglang.srt.speculative.glance.core.law``. The optimiser is SciPy's, so the fit is
here and not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.stats import spearmanr
from sglang.glance.law.rows import LawRow
from sglang.srt.speculative.glance.core import law

# Least squares has more than one valley where v1's cap is reached: the best of these starts wins.
FIRST_SLOPES = (0.5, 5.0, -0.5)


class CannotFit(ValueError):
    """Rounds that do not determine the law; the message says why."""


class Fit(msgspec.Struct, frozen=True):
    """One form's ``logit p = b0 - b1 H``. ``round_r2``: over single rounds; ``decile_r2``: over the
    deciles of the entropy; ``conditions``: the four that the law holds by."""

    b0: float
    b1: float
    clamped: bool
    round_r2: float
    decile_r2: float
    conditions: dict[str, bool]

    @property
    def holds(self) -> bool:
        return all(self.conditions.values())


class Decile(msgspec.Struct, frozen=True):
    """``entropy``, ``drafts``: means; ``error``: standard error of the drafts' mean."""

    rounds: int
    entropy: float
    drafts: float
    error: float


class Law(msgspec.Struct, frozen=True):
    """Rounds and the law fitted to them, by form. ``ceiling``: the R2 of the best function of H.
    ``problem``: why there is no fit."""

    rounds: int
    mean_entropy: float
    mean_drafts: float
    budget: int
    max_drafts: int
    deciles: list[Decile]
    rank_correlation: float | None = None
    rank_p: float | None = None
    ceiling: float | None = None
    fits: dict[str, Fit] = {}
    problem: str | None = None


def fit_law(rows: Sequence[LawRow]) -> Law:
    """Fit both forms to all of ``rows``; a :class:`Law` without fits where they determine none.

    Raises ``ValueError`` for rows that are not rounds of one tree shape.
    """
    budget, max_drafts = _one_shape(rows)
    entropies, drafts = _columns(rows, max_drafts)
    known = {
        "rounds": len(rows),
        "mean_entropy": float(entropies.mean()),
        "mean_drafts": float(drafts.mean()),
        "budget": budget,
        "max_drafts": max_drafts,
        "deciles": _deciles(entropies, drafts),
    }
    try:
        _check_determined(entropies, drafts)
    except CannotFit as error:
        return Law(**known, problem=str(error))
    rank = spearmanr(entropies.numpy(), drafts.numpy())
    best_r2 = law.ceiling(entropies, drafts)
    return Law(
        **known,
        rank_correlation=float(rank.statistic),
        rank_p=float(rank.pvalue),
        ceiling=best_r2,
        fits={form: _fit(form, entropies, drafts, max_drafts, rank, best_r2) for form in law.FORMS},
    )


def parameters(
    form: str, entropies: torch.Tensor, drafts: torch.Tensor, max_drafts: int
) -> tuple[float, float]:
    """(b0, b1) of least squares on single rounds; |b1| is at most ``MAX_SLOPE``.

    ``entropies``, ``drafts``: ``[n] float64``. Raises :class:`CannotFit`.
    """
    _check_determined(entropies, drafts)
    expected = law.FORMS[form]

    def residuals(b: np.ndarray) -> np.ndarray:
        return (expected(law.log_odds(entropies, *b), max_drafts) - drafts).numpy()

    middle, mean = float(entropies.mean()), float(drafts.mean())
    bounds = ([-np.inf, -law.MAX_SLOPE], [np.inf, law.MAX_SLOPE])
    tries = [
        least_squares(residuals, [np.log(mean) + slope * middle, slope], bounds=bounds)
        for slope in FIRST_SLOPES
    ]
    best = min(tries, key=lambda each: each.cost)
    return float(best.x[0]), float(best.x[1])


def _fit(
    form: str,
    entropies: torch.Tensor,
    drafts: torch.Tensor,
    max_drafts: int,
    rank: tuple[float, float],
    best_r2: float,
) -> Fit:
    b0, b1 = parameters(form, entropies, drafts, max_drafts)
    # The optimiser stays inside its bounds and only nears them.
    clamped = abs(b1) > law.MAX_SLOPE - 1e-3
    if clamped:
        b1 = float(np.copysign(law.MAX_SLOPE, b1))
    predicted = law.FORMS[form](law.log_odds(entropies, b0, b1), max_drafts)
    round_r2 = law.r2(drafts, predicted)
    decile_r2 = law.r2_of_deciles(entropies, drafts, predicted)
    held = law.conditions(
        b1=b1,
        rank_correlation=float(rank[0]),
        rank_p=float(rank[1]),
        round_r2=round_r2,
        decile_r2=decile_r2,
        best_r2=best_r2,
        mean_drafts=float(drafts.mean()),
    )
    return Fit(b0, b1, clamped, round_r2, decile_r2, held)


def _check_determined(entropies: torch.Tensor, drafts: torch.Tensor) -> None:
    n = len(entropies)
    if n < law.MIN_ROUNDS:
        raise CannotFit(f"{n} rounds; a fit needs {law.MIN_ROUNDS}: ask more or longer answers")
    if drafts.min() == drafts.max():
        raise CannotFit(
            f"all {n} rounds accepted {int(drafts[0])} drafts: no entropy can explain what does "
            "not vary"
        )
    if entropies.max() - entropies.min() < 1e-6:
        raise CannotFit(
            f"the entropy is {entropies[0]:.4g} nats in all {n} rounds: the slope has no value"
        )


def _one_shape(rows: Sequence[LawRow]) -> tuple[int, int]:
    shapes = sorted({(row.budget, row.max_drafts) for row in rows})
    if len(shapes) != 1:
        raise ValueError(
            f"rounds of {len(shapes)} tree shapes, (budget, max_drafts) = {shapes}; expected one: "
            "fit them apart"
        )
    return shapes[0]


def _columns(rows: Sequence[LawRow], max_drafts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropies and drafts ``[n] float64``."""
    for number, row in enumerate(rows, 1):
        # A sum over float32 may end a rounding below zero.
        if not -1e-5 <= row.entropy < float("inf"):
            raise ValueError(f"round {number}: entropy {row.entropy}, expected nats of at least 0")
        if not 0 <= row.num_correct_drafts <= max_drafts:
            raise ValueError(
                f"round {number}: {row.num_correct_drafts} correct drafts, expected 0 to "
                f"{max_drafts}"
            )
    columns = [(row.entropy, row.num_correct_drafts) for row in rows]
    entropies, drafts = torch.tensor(columns, dtype=torch.float64).unbind(1)
    return entropies.contiguous(), drafts.contiguous()


def _deciles(entropies: torch.Tensor, drafts: torch.Tensor) -> list[Decile]:
    bin_of = law.bins(entropies, law.DECILES)
    out = []
    for each in range(int(bin_of.max()) + 1):
        own = drafts[bin_of == each]
        error = float(own.std() / len(own) ** 0.5) if len(own) > 1 else 0.0
        entropy = float(entropies[bin_of == each].mean())
        out.append(Decile(len(own), entropy, float(own.mean()), error))
    return out
