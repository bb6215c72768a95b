"""Every figure of a measurement, once: tables, plots and ``summary.json`` show what is here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from sglang.glance.measure.figures import (
    POOLED,
    Interval,
    Prompt,
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
from sglang.glance.serving.arms import GLANCE, PLAIN

FORMULAS = {
    "accept length": "(tokens - requests) / verify rounds: the bonus counts, a request's first "
    "token (its prefill's) does not",
    "same ids": "answers with plain decoding's token ids",
    "decode tok/s": "(tokens - requests) / time from first to last token, per request",
    "whole tok/s": "end to end: tokens / time from sending to last token; above batch 1, tokens / "
    "time of the whole pass",
    "ms/step or round": "plain decode time / (tokens - requests), or decode time / "
    "verify rounds; above batch 1 a request's decode time includes the prefills of the others",
    "round": "a round's phases; engine = round - (draft + tree + verify + accept + commit)",
    "x plain": "ratio of two arms' tok/s, each prompt the median of its repeats; low-high: a 95 % "
    "bootstrap over prompts, paired by arm",
}


class Cell(msgspec.Struct, frozen=True):
    """One arm on one task. ``same``: answers with plain decoding's ids, of ``asked``. What does
    not apply is None: accept length and ratios of plain decoding, end to end of a task above
    batch 1."""

    task: str
    arm: str
    same: int
    asked: int
    accept_length: float | None
    ms: float
    decode_tok_s: float
    decode_x_plain: Interval | None
    end_to_end_tok_s: float | None
    end_to_end_x_plain: Interval | None


class Condition(msgspec.Struct, frozen=True):
    """One dtype at one batch size. ``split_ms``: a round's phases by arm, at batch 1;
    ``left_out``: prompts that not every arm answered."""

    dtype: str
    batch: int
    repeats: int
    left_out: int
    cells: list[Cell]
    plain_step_ms: float
    split_ms: dict[str, dict[str, float]]


class Target(msgspec.Struct, frozen=True):
    what: str
    got: float
    wanted: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted


class Loss(msgspec.Struct, frozen=True):
    """One prompt where GLANCE's end-to-end or decode rate is below another arm's."""

    dtype: str
    batch: int
    prompt: int
    task: str
    other: str
    metric: str
    ours: float
    theirs: float


class Summary(msgspec.Struct, frozen=True):
    """``targets``: of the shipped model alone; ``prompts``: how many GLANCE answered."""

    run: Run
    conditions: list[Condition]
    targets: list[Target]
    losses: list[Loss]
    prompts: int
    formulas: dict[str, str]


def summarise(run: Run, rows: Sequence[Row]) -> Summary:
    whole = {key: answered_by_all(own) for key, own in _conditions(rows)}
    kept = [row for own in whole.values() for row in own]
    return Summary(
        run=run,
        conditions=[_condition(*key, own, rows) for key, own in whole.items() if own],
        targets=targets(kept) if run.shipped else [],
        losses=losses(kept),
        formulas=FORMULAS,
        prompts=sum(len(distinct(select(own, arm=GLANCE), "prompt")) for own in whole.values()),
    )


def distinct(rows: Sequence[Row], name: str) -> list:
    """Values of a field in order of appearance."""
    return list(dict.fromkeys(getattr(row, name) for row in rows))


def _conditions(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, int], list[Row]]]:
    for dtype in distinct(rows, "dtype"):
        for batch in distinct(rows, "batch"):
            yield (dtype, batch), select(rows, dtype=dtype, batch=batch)


def answered_by_all(rows: Sequence[Row]) -> list[Row]:
    """Of one condition: a run that was cut short ends in the middle of a prompt."""
    by_arm = [{row.prompt for row in select(rows, arm=arm)} for arm in distinct(rows, "arm")]
    both = set.intersection(*by_arm) if by_arm else set()
    return [row for row in rows if row.prompt in both]


def _condition(dtype: str, batch: int, own: Sequence[Row], rows: Sequence[Row]) -> Condition:
    asked = distinct(select(rows, dtype=dtype, batch=batch), "prompt")
    arms = distinct(own, "arm")
    cells = [
        _cell(own, task, arm, batch) for task in [*distinct(own, "task"), POOLED] for arm in arms
    ]
    splits = {arm: split_ms(select(own, arm=arm)) for arm in arms} if batch == 1 else {}
    return Condition(
        dtype=dtype,
        batch=batch,
        repeats=len(distinct(own, "repeat")),
        left_out=len(asked) - len(distinct(own, "prompt")),
        cells=cells,
        plain_step_ms=step_ms(prompts(select(own, arm=PLAIN)).values()),
        split_ms={arm: split for arm, split in splits.items() if split},
    )


def _cell(own: Sequence[Row], task: str, arm: str, batch: int) -> Cell:
    rows, plain_rows = select(own, task=task, arm=arm), select(own, task=task, arm=PLAIN)
    each, plain = prompts(rows), prompts(plain_rows)
    drafted, is_plain = any(row.rounds for row in rows), arm == PLAIN
    same, asked = identical(rows, plain_rows)
    # Requests of a batch share its time: end to end has one figure.
    whole = batch == 1 or task == POOLED
    return Cell(
        task=task,
        arm=arm,
        same=same,
        asked=asked,
        accept_length=accept_length(rows) if drafted else None,
        ms=(round_ms if drafted else step_ms)(each.values()),
        decode_tok_s=decode_tok_s(each.values()),
        decode_x_plain=None if is_plain else speedup(decode_tok_s, each, plain),
        end_to_end_tok_s=end_to_end_tok_s(each.values()) if whole else None,
        end_to_end_x_plain=_end_to_end(each, plain, batch) if whole and not is_plain else None,
    )


def _end_to_end(each: dict[int, Prompt], plain: dict[int, Prompt], batch: int) -> Interval:
    if batch == 1:
        return speedup(end_to_end_tok_s, each, plain)
    value = end_to_end_tok_s(each.values()) / end_to_end_tok_s(plain.values())
    return Interval(value, float("nan"), float("nan"))


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
    """The worst first."""
    out = []
    for (dtype, batch), own in _conditions(rows):
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
                    got, its = rate([ours[prompt]]), rate([theirs[prompt]])
                    if got < its:
                        out.append(Loss(dtype, batch, prompt, task[prompt], other, name, got, its))
    return sorted(out, key=lambda loss: loss.ours / loss.theirs)
