"""Pictures of a measurement, PNG: speed-up by task and arm, and a round by phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.glance.cli.files import whole
from sglang.glance.measure.figures import OVERHEAD, PHASES, Interval
from sglang.glance.measure.summary import Cell, Condition, Summary
from sglang.glance.serving.arms import PLAIN

METRICS = {"decode_x_plain": "decode only", "end_to_end_x_plain": "end to end"}
DPI = 150


def draw(summary: Summary, folder: Path) -> list[Path]:
    """The files that were written."""
    return [*_speedups(summary.conditions, folder), *_rounds(summary.conditions, folder)]


def _figure(across: float, down: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(across, down), layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    with whole(path) as part:
        figure.savefig(part, dpi=DPI)
    return path


def _speedups(conditions: Sequence[Condition], folder: Path) -> list[Path]:
    out = []
    for condition in conditions:
        cells = [cell for cell in condition.cells if cell.arm != PLAIN]
        if not cells:
            continue
        tasks = list(dict.fromkeys(cell.task for cell in cells))
        arms = list(dict.fromkeys(cell.arm for cell in cells))
        figure = _figure(1.6 + 1.5 * max(len(tasks), 3), 5.6)
        panels = figure.subplots(2, 1, sharex=True)
        for panel, (metric, name) in zip(panels, METRICS.items(), strict=True):
            _bars(panel, cells, metric, tasks, arms)
            panel.set_ylabel(f"{name}, x plain decoding")
        panels[-1].set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
        prompts = f"{condition.dtype}, batch {condition.batch}, {condition.repeats} repeats"
        figure.suptitle(f"Tokens/s against plain decoding: {prompts}", fontsize=11)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(arms), 6), frameon=False
        )
        name = f"speedup-{condition.dtype}-batch{condition.batch}.png"
        out.append(_save(figure, folder / name))
    return out


def _bars(
    panel: Any, cells: Sequence[Cell], metric: str, tasks: Sequence[str], arms: Sequence[str]
) -> None:
    """A group a task, a bar an arm, the 95 % interval where there is one."""
    width = 0.8 / len(arms)
    found = {(cell.task, cell.arm): getattr(cell, metric) for cell in cells}
    for number, arm in enumerate(arms):
        drawn = [(at, found[task, arm]) for at, task in enumerate(tasks) if found[task, arm]]
        places = [at - 0.4 + (number + 0.5) * width for at, _ in drawn]
        ratios: list[Interval] = [ratio for _, ratio in drawn]
        heights = [ratio.value for ratio in ratios]
        below = [ratio.value - ratio.low for ratio in ratios]
        above = [ratio.high - ratio.value for ratio in ratios]
        panel.bar(places, heights, 0.92 * width, label=arm, color=f"C{number}")
        lines = {"fmt": "none", "ecolor": "black", "elinewidth": 0.8, "capsize": 1.5}
        panel.errorbar(places, heights, (below, above), **lines)
    panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _rounds(conditions: Sequence[Condition], folder: Path) -> list[Path]:
    """One bar an arm, its phases one after the other; a plain step is a line."""
    split = [condition for condition in conditions if condition.split_ms]
    if not split:
        return []
    num_bars = sum(len(condition.split_ms) for condition in split)
    figure = _figure(8, 1.6 + 0.42 * num_bars + 0.5 * len(split))
    ratios = [len(condition.split_ms) for condition in split]
    panels = figure.subplots(len(split), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    for panel, condition in zip(panels, split, strict=True):
        _phases(panel, condition)
    panels[-1].set_xlabel("ms a round, batch 1")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    figure.suptitle("A round by phase", fontsize=11)
    return [_save(figure, folder / "round.png")]


def _phases(panel: Any, condition: Condition) -> None:
    arms, left = list(condition.split_ms), [0.0] * len(condition.split_ms)
    for number, phase in enumerate((*PHASES, OVERHEAD)):
        ms = [condition.split_ms[arm][phase] for arm in arms]
        color = "lightgrey" if phase == OVERHEAD else f"C{number}"
        panel.barh(arms, ms, 0.7, left=left, label=phase, color=color)
        left = [start + length for start, length in zip(left, ms, strict=True)]
    for place, end in enumerate(left):
        panel.text(end, place, f" {end:.1f}", va="center", fontsize=8)
    panel.axvline(
        condition.plain_step_ms, color="black", linewidth=0.9, linestyle="--", label="plain step"
    )
    panel.invert_yaxis()
    panel.margins(x=0.08)
    panel.set_title(condition.dtype, fontsize=10, loc="left")
    panel.spines[["top", "right"]].set_visible(False)
