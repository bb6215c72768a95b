"""Tables of a measurement, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from sglang.glance.cli.terminal import note, table
from sglang.glance.measure.figures import Interval
from sglang.glance.measure.summary import Cell, Condition, Loss, Summary, Target
from sglang.glance.serving.arms import PLAIN

MOST_LOSSES = 20
ARMS_ACROSS = 5  # of a round's split, side by side


def show(summary: Summary, console: Console) -> None:
    """Print everything one run says."""
    for line in about(summary):
        note(console, line)
    for condition in summary.conditions:
        console.print("", speed_table(condition))
    splits = [each for each in summary.conditions if each.split_ms]
    for condition in splits:
        for split in split_tables(condition):
            console.print("", split)
    if splits:
        note(console, f"logging a round costs {summary.run.round_log_ms:.3f} ms")
    if summary.targets:
        console.print("", target_table(summary.targets))
    console.print("", loss_table(summary.losses, summary.prompts), "")
    for name, formula in summary.formulas.items():
        note(console, f"{name} = {formula}")


def about(summary: Summary) -> Iterator[str]:
    run, made = summary.run, summary.run.provenance
    changed = {None: "", True: " with local changes", False: ""}[made.dirty]
    yield f"{made.started}  commit {made.commit}{changed}"
    yield f"{made.machine}, {made.cores} cores, {made.memory_gib} GiB, {' '.join(made.features)}"
    yield f"{made.threads} thread(s) a server; load {made.load} at the start; ops: {made.kernels}"
    yield f"Python {made.python}, {made.shown_versions}"
    if run.boot_s:
        yield f"server start, seconds (all arms at once): {run.boot_s}"
    left_out = sum(condition.left_out for condition in summary.conditions)
    if left_out:
        yield f"left out: {left_out} prompts that not every arm answered (the run was cut short)"


def speed_table(condition: Condition) -> Table:
    """A task is a row of its own; its arms follow."""
    title = f"{condition.dtype}, batch {condition.batch}, {condition.repeats} repeats"
    columns = ("same\nids", "accept\nlength", "ms/step\nor round", "decode\ntok/s", "x plain")
    out = table(title, "", right=(*columns, "whole\ntok/s", "x plain"), gap=1)
    task = None
    for cell in condition.cells:
        if cell.task != task:
            task = cell.task
            out.add_section()
            out.add_row(f"[bold]{task}")
        out.add_row(f" {cell.arm}", *_speeds(cell))
    return out


def _speeds(cell: Cell) -> Iterator[str]:
    yield "" if cell.arm == PLAIN else f"{cell.same}/{cell.asked}"
    yield "" if cell.accept_length is None else f"{cell.accept_length:.2f}"
    yield f"{cell.ms:.2f}"
    yield f"{cell.decode_tok_s:.1f}"
    yield _times(cell.decode_x_plain)
    yield "" if cell.end_to_end_tok_s is None else f"{cell.end_to_end_tok_s:.1f}"
    yield _times(cell.end_to_end_x_plain)


def _times(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    digits = 2 if ratio.value < 10 else 1  # a line has room for no more
    span = f" {ratio.low:.{digits}f}-{ratio.high:.{digits}f}" if ratio.low == ratio.low else ""
    return f"{ratio.value:.{digits}f}{span}"


def split_tables(condition: Condition) -> Iterator[Table]:
    """A GLANCE round by phase: milliseconds and percent of it."""
    arms = list(condition.split_ms)
    for start in range(0, len(arms), ARMS_ACROSS):
        shown = {arm: condition.split_ms[arm] for arm in arms[start : start + ARMS_ACROSS]}
        title = f"A round, {condition.dtype}: ms (%)"
        out = table(title, "", right=tuple(shown))
        whole = {arm: sum(split.values()) for arm, split in shown.items()}
        for phase in next(iter(shown.values())):
            parts = ((split[phase], 100 / whole[arm]) for arm, split in shown.items())
            out.add_row(phase, *(f"{ms:.2f} ({share * ms:4.1f})" for ms, share in parts))
        out.add_section()
        step = condition.plain_step_ms
        out.add_row("round", *(f"{ms:.2f}" for ms in whole.values()))
        out.add_row("plain step", *(f"{step:.2f}" for _ in whole))
        out.add_row("steps a round", *(f"{ms / step:.2f}" for ms in whole.values()))
        yield out


def target_table(targets: Sequence[Target]) -> Table:
    out = table("Targets", "target", "wanted", "got", "met")
    for target in targets:
        bound = "at most" if target.at_most else "at least"
        wanted, met = f"{bound} {target.wanted:g}", "yes" if target.met else "NO"
        out.add_row(target.what, wanted, f"{target.got:.2f}", met)
    return out


def loss_table(losses: Sequence[Loss], num_prompts: int) -> Table:
    title = f"Where GLANCE loses: {len(losses)} comparisons over {num_prompts} prompts"
    out = table(title, "dtype", "batch", "prompt", "task", "metric", "faster arm")
    for name in ("its tok/s", "ours"):
        out.add_column(name, justify="right")
    for loss in losses[:MOST_LOSSES]:
        where = (loss.dtype, str(loss.batch), str(loss.prompt), loss.task, loss.metric, loss.other)
        out.add_row(*where, f"{loss.theirs:.1f}", f"{loss.ours:.1f}")
    if len(losses) > MOST_LOSSES:
        out.caption = f"the {MOST_LOSSES} worst; summary.json has all"
    return out
