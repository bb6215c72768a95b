"""The law's table and plot. They read fits and compute nothing but the curves' points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sglang.glance.cli.terminal import note, table
from sglang.glance.law.fit import Fit, Law
from sglang.srt.speculative.glance.core import law

NOTES = (
    "a = correct drafts of a round, without the bonus; H = entropy in nats of the target's "
    "distribution at the root; logit p = b0 - b1 H",
    "v1: E[a|H] = min(p/(1-p), L); v2: E[a|H] = p(1-p^L)/(1-p); L = drafted tokens of a block",
    "R2 = over single rounds; ceiling = R2 of the best function of H (50 bins); R2 deciles = of "
    "the curve through the deciles' means",
    "conditions: slope b1 > 0; rank Spearman < 0, p < 0.05; fit R2 deciles >= 0.5 or R2 >= half of "
    "the ceiling; range mean a >= 0.15 and b1 below its clamp of 25 (* at the clamp)",
)
STYLES = {"v1": "--", "v2": "-"}


def show(laws: Mapping[str, Law], console: Console) -> None:
    """``laws``: by task, and all rounds pooled."""
    console.print(_rounds(laws), "", _fits(laws), "")
    for task, own in laws.items():
        if own.problem is not None:
            note(console, f"{task}: {own.problem}")
    for line in NOTES:
        note(console, line)


def _rounds(laws: Mapping[str, Law]) -> Table:
    columns = ("rounds", "mean H", "mean a", "Spearman", "ceiling")
    out = table("Rounds", "task", right=columns)
    for task, own in laws.items():
        numbers = [str(own.rounds), f"{own.mean_entropy:.3f}", f"{own.mean_drafts:.2f}"]
        if own.problem is None:
            numbers += [f"{own.rank_correlation:.2f}", f"{own.ceiling:.2f}"]
        out.add_row(task, *numbers)
    return out


def _fits(laws: Mapping[str, Law]) -> Table:
    out = table("Entropy law", "task", "form", right=("b0", "b1", "R2", "R2 deciles"))
    out.add_column("law")
    for task, own in laws.items():
        out.add_section()
        if own.problem is not None:
            out.add_row(task, *[""] * 5, "not fitted")
        for form, fit in own.fits.items():
            out.add_row(task if form == "v1" else "", form, *_figures(fit))
    return out


def _figures(fit: Fit) -> list[str]:
    failed = [name for name, held in fit.conditions.items() if not held]
    clamp = "*" if fit.clamped else ""
    numbers = [f"{fit.b0:.2f}", f"{fit.b1:.2f}{clamp}", f"{fit.round_r2:.2f}"]
    return [*numbers, f"{fit.decile_r2:.2f}", f"no: {', '.join(failed)}" if failed else "holds"]


def plot(laws: Mapping[str, Law], path: Path) -> None:
    """A panel a task: the deciles' means with their standard errors, and both forms' curves, drawn
    from the first decile to the last: beyond them there is no data."""
    from matplotlib.figure import Figure

    across = min(3, len(laws))
    down = -(-len(laws) // across)
    figure = Figure(figsize=(4 * across, 3.2 * down), layout="constrained")
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for panel, (task, own) in zip(panels, laws.items(), strict=False):
        x, y, error = zip(*((d.entropy, d.drafts, d.error) for d in own.deciles), strict=True)
        panel.errorbar(x, y, error, fmt="o", color="black", markersize=4, label="deciles")
        at = torch.linspace(x[0], x[-1], 200, dtype=torch.float64)
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
