"""The law's table and plot. They read fits and compute nothing but the curves' points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sglang.glance.law.fit import Fit, Law
from sglang.srt.speculative.glance.core import law

NOTES = (
    "a = correct drafts of a round, without the bonus; H = entropy in nats of the target's "
    "distribution at the root; logit p = b0 - b1 H",
    "v1: E[a|H] = min(p/(1-p), L); v2: E[a|H] = p(1-p^L)/(1-p); L = drafted tokens of a block",
    "R2 = over single rounds; ceiling = R2 of the best function of H (50 bins); R2 deciles = of "
    "the curve through the deciles' means",
    "conditions: slope b1 > 0; rank Spearman < 0, p < 0.05; fit R2 deciles >= 0.5 or R2 >= half of "
    "the ceiling; range mean a >= 0.15 and b1 below its clamp of 25",
)
STYLES = {"v1": "--", "v2": "-"}


def show(laws: Mapping[str, Law], console: Console) -> None:
    """``laws``: by task, and all rounds pooled."""
    columns = ("task", "rounds", "mean H", "mean a", "Spearman", "ceiling", "form", "b0", "b1")
    table = Table(*columns, "R2", "R2 deciles", "law", title="Entropy law", title_justify="left")
    for task, own in laws.items():
        head = [task, str(own.rounds), f"{own.mean_entropy:.3f}", f"{own.mean_drafts:.2f}"]
        if own.problem is not None:
            table.add_row(*head, *[""] * 7, "not fitted", end_section=True)
            continue
        head += [f"{own.rank_correlation:.2f}", f"{own.ceiling:.2f}"]
        for form, fit in own.fits.items():
            table.add_row(*head, form, *_figures(fit), end_section=form == "v2")
            head = [""] * len(head)
    console.print(table)
    for task, own in laws.items():
        if own.problem is not None:
            console.print(f"{task}: {own.problem}", markup=False, highlight=False, soft_wrap=True)
    for note in NOTES:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _figures(fit: Fit) -> list[str]:
    failed = [name for name, held in fit.conditions.items() if not held]
    clamp = " (clamp)" if fit.clamped else ""
    numbers = [f"{fit.b0:.2f}", f"{fit.b1:.2f}{clamp}", f"{fit.round_r2:.2f}"]
    return [*numbers, f"{fit.decile_r2:.2f}", f"no: {', '.join(failed)}" if failed else "holds"]


def plot(laws: Mapping[str, Law], path: Path) -> None:
    """A panel a task: the deciles' means with their standard errors, and both forms' curves."""
    from matplotlib.figure import Figure

    across = min(3, len(laws))
    down = -(-len(laws) // across)
    figure = Figure(figsize=(4 * across, 3.2 * down), layout="constrained")
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for panel, (task, own) in zip(panels, laws.items(), strict=False):
        x, y, error = zip(*((d.entropy, d.drafts, d.error) for d in own.deciles), strict=True)
        panel.errorbar(x, y, error, fmt="o", color="black", markersize=4, label="deciles")
        at = torch.linspace(0, max(x[-1], 1e-3), 200, dtype=torch.float64)
        for form, fit in own.fits.items():
            curve = law.FORMS[form](law.log_odds(at, fit.b0, fit.b1), own.max_drafts)
            label = f"{form}: b0 {fit.b0:.2f}, b1 {fit.b1:.2f}"
            panel.plot(at.numpy(), curve.numpy(), STYLES[form], label=label)
        panel.set_title(f"{task}, {own.rounds} rounds", fontsize=10)
        panel.legend(fontsize=7, frameon=False)
    for panel in panels[len(laws) :]:
        panel.remove()
    figure.supxlabel("entropy at the root, nats")
    figure.supylabel("correct drafts a round")
    figure.savefig(path, dpi=150)
