"""Tables of a measurement. They read rows and compute nothing that ``figures`` does not define."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from sglang.glance.figures import (
    GLANCE,
    OVERHEAD,
    PLAIN,
    POOLED,
    Interval,
    Row,
    Run,
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

NOTES = (
    "accept length = (tokens - requests) / verify rounds: the bonus counts, a request's first "
    "token (its prefill's) does not",
    "decode tok/s = (tokens - requests) / time from first to last token, per request; "
    "end-to-end tok/s = tokens / time from sending to last token",
    "step = plain decode time / (tokens - requests); round = decode time / verify rounds; engine = "
    "round - (draft + tree + verify + accept + commit)",
    "above batch 1 a request's decode time includes the prefills of the others, and end to end is "
    "tokens / time of the whole pass",
    "each prompt is the median of its repeats; [low, high] is a 95 % bootstrap over prompts, "
    "paired by arm",
)
MOST_LOSSES = 20


class Target(NamedTuple):
    what: str
    got: float
    wanted: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted


class Loss(NamedTuple):
    """One prompt where GLANCE's end-to-end or decode rate is below another arm's."""

    dtype: str
    batch: int
    prompt: int
    task: str
    other: str
    metric: str
    ours: float
    theirs: float


def distinct(rows: Sequence[Row], name: str) -> list:
    """Values of a field in order of appearance."""
    return list(dict.fromkeys(getattr(row, name) for row in rows))


def conditions(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    for dtype in distinct(rows, "dtype"):
        for batch in distinct(rows, "batch"):
            yield dtype, batch


def targets(rows: Sequence[Row]) -> list[Target]:
    """The figures this release is held to, at batch 1."""
    out = []
    for dtype in distinct(rows, "dtype"):
        own = select(rows, dtype=dtype, batch=1)
        plain, glance = select(own, arm=PLAIN), select(own, arm=GLANCE)
        if not plain or not glance:
            continue
        each = round_ms(prompts(glance).values())
        steps = each / step_ms(prompts(plain).values())
        out.append(Target(f"{dtype}: plain steps a round costs", steps, 2.5, at_most=True))
        split = split_ms(glance)
        if split:
            share = 100 * split["tree"] / each
            out.append(Target(f"{dtype}: tree building, % of a round", share, 3, at_most=True))
        pair = [prompts(select(arm, task="document")) for arm in (glance, plain)]
        if all(pair):
            decode, whole = speedup(decode_tok_s, *pair), speedup(end_to_end_tok_s, *pair)
            out.append(Target(f"{dtype}: documents, decode only, x plain", decode.value, 3, False))
            out.append(Target(f"{dtype}: documents, end to end, x plain", whole.value, 2.5, False))
    return out


def losses(rows: Sequence[Row]) -> list[Loss]:
    out = []
    for dtype, batch in conditions(rows):
        own = select(rows, dtype=dtype, batch=batch)
        ours = prompts(select(own, arm=GLANCE))
        task = {row.prompt: row.task for row in own}
        for other in (arm for arm in distinct(own, "arm") if arm != GLANCE):
            theirs = prompts(select(own, arm=other))
            for prompt in ours.keys() & theirs.keys():
                # Requests of a batch share its time: only decoding is each one's own.
                metrics = {"decode": decode_tok_s}
                if batch == 1:
                    metrics["end to end"] = end_to_end_tok_s
                for name, rate in metrics.items():
                    mine, its = rate([ours[prompt]]), rate([theirs[prompt]])
                    if mine < its:
                        out.append(Loss(dtype, batch, prompt, task[prompt], other, name, mine, its))
    return sorted(out, key=lambda loss: loss.ours / loss.theirs)


def _times(ratio: Interval) -> str:
    span = "" if ratio.low != ratio.low else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.value:.2f}{span}"


def speed_table(rows: Sequence[Row], dtype: str, batch: int) -> Table:
    own = select(rows, dtype=dtype, batch=batch)
    repeats = len(distinct(own, "repeat"))
    table = Table(title=f"{dtype}, batch {batch}, {repeats} repeats", title_justify="left")
    for name in (
        "task",
        "arm",
        "same ids",
        "accept\nlength",
        "ms a step\nor round",
        "decode\ntok/s",
        "x plain",
        "end-to-end\ntok/s",
        "x plain",
    ):
        table.add_column(name, justify="left" if name in ("task", "arm") else "right")
    for task in [*distinct(own, "task"), POOLED]:
        plain_rows = select(own, task=task, arm=PLAIN)
        plain = prompts(plain_rows)
        for arm in distinct(own, "arm"):
            arm_rows = select(own, task=task, arm=arm)
            each = prompts(arm_rows)
            drafted = any(row.rounds for row in arm_rows)
            same, asked = identical(arm_rows, plain_rows)
            table.add_row(
                task if arm == PLAIN else "",
                arm,
                "" if arm == PLAIN else f"{same}/{asked}",
                f"{accept_length(arm_rows):.2f}" if drafted else "",
                f"{(round_ms if drafted else step_ms)(each.values()):.2f}",
                f"{decode_tok_s(each.values()):.1f}",
                "" if arm == PLAIN else _times(speedup(decode_tok_s, each, plain)),
                *_end_to_end(each, None if arm == PLAIN else plain, batch, task),
            )
        table.add_section()
    return table


def _end_to_end(each: dict, plain: dict | None, batch: int, task: str) -> tuple[str, str]:
    """Tokens/s and the ratio to plain. Requests of a batch share its time: it has one figure."""
    if batch > 1 and task != POOLED:
        return "", ""
    rate = end_to_end_tok_s(each.values())
    if plain is None:
        return f"{rate:.1f}", ""
    if batch == 1:
        return f"{rate:.1f}", _times(speedup(end_to_end_tok_s, each, plain))
    return f"{rate:.1f}", f"{rate / end_to_end_tok_s(plain.values()):.2f}"


def split_table(rows: Sequence[Row]) -> Table:
    """A GLANCE round by phase: milliseconds, share, and length in plain steps."""
    table = Table(title="A round at batch 1, ms (% of the round)", title_justify="left")
    for name in (
        "dtype",
        "arm",
        "draft",
        "tree",
        "verify",
        "accept",
        "commit",
        OVERHEAD,
        "round",
        "plain step",
        "steps a round",
    ):
        table.add_column(name, justify="left" if name in ("dtype", "arm") else "right")
    for dtype in distinct(rows, "dtype"):
        own = select(rows, dtype=dtype, batch=1)
        plain = select(own, arm=PLAIN)
        for arm in distinct(own, "arm"):
            split = split_ms(select(own, arm=arm))
            if not split:
                continue
            whole, step = sum(split.values()), step_ms(prompts(plain).values())
            parts = [f"{ms:.2f} ({100 * ms / whole:.1f})" for ms in split.values()]
            table.add_row(dtype, arm, *parts, f"{whole:.2f}", f"{step:.2f}", f"{whole / step:.2f}")
    return table


def target_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Targets", title_justify="left")
    for name in ("target", "wanted", "got", "met"):
        table.add_column(name)
    for target in targets(rows):
        bound = "at most" if target.at_most else "at least"
        table.add_row(
            target.what,
            f"{bound} {target.wanted:g}",
            f"{target.got:.2f}",
            "yes" if target.met else "NO",
        )
    return table


def loss_table(rows: Sequence[Row]) -> Table:
    lost = losses(rows)
    asked = sum(
        len(distinct(select(rows, dtype=d, batch=b, arm=GLANCE), "prompt"))
        for d, b in conditions(rows)
    )
    title = f"Where GLANCE loses: {len(lost)} comparisons over {asked} prompts"
    table = Table(title=title, title_justify="left")
    for name in ("dtype", "batch", "prompt", "task", "metric", "faster arm", "its tok/s", "ours"):
        table.add_column(name)
    for loss in lost[:MOST_LOSSES]:
        table.add_row(
            loss.dtype,
            str(loss.batch),
            str(loss.prompt),
            loss.task,
            loss.metric,
            loss.other,
            f"{loss.theirs:.1f}",
            f"{loss.ours:.1f}",
        )
    if len(lost) > MOST_LOSSES:
        table.caption = f"the {MOST_LOSSES} worst; the rest is in the rows"
    return table


def show(run: Run, rows: Sequence[Row], console: Console) -> None:
    """Print everything one run says."""
    made = run.provenance
    changed = {None: "", True: " with local changes", False: ""}[made.dirty]
    console.print(
        f"{made.started}  commit {made.commit}{changed}\n{made.machine}, {made.cores} cores, "
        f"{made.memory_gib} GiB, {' '.join(made.features)}; {made.threads} thread(s) a server; "
        f"load {made.load} at the start\nPython {made.python}, {made.shown_versions}; ops: "
        f"{made.kernels}\nserver start, seconds (all arms at once): {run.boot_s}",
        highlight=False,
    )
    for dtype, batch in conditions(rows):
        console.print(speed_table(rows, dtype, batch))
    if select(rows, batch=1):
        console.print(split_table(rows))
        console.print(f"logging a round costs {run.round_log_ms:.3f} ms", highlight=False)
        console.print(target_table(rows))
    console.print(loss_table(rows))
    for note in NOTES:
        console.print(f"- {note}", highlight=False, markup=False)
