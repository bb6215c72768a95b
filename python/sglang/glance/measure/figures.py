"""Rows of a measurement, and the arithmetic that turns them into figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from sglang.glance.cli.files import Lines, write_json
from sglang.glance.measure.provenance import Provenance
from sglang.glance.prompts.rows import POOLED

PHASES = ("draft", "tree", "verify", "accept", "commit")
OVERHEAD = "engine"
RESAMPLES = 2000


class Row(msgspec.Struct, frozen=True):
    """One answered request. ``ids``: tokens delivered, the prefill's included. ``rounds``: verify
    passes it took (0 in plain decoding). ``first_s``, ``total_s``: from sending to the first and
    to the last token. ``group``: requests in flight together, which took ``group_s`` from the
    first sent to the last answered (alone at batch 1). ``laps_ms``: each phase summed over the
    request's ``logged`` rounds, where the engine logged them."""

    dtype: str
    arm: str
    batch: int
    repeat: int
    prompt: int
    task: str
    ids: list[int]
    rounds: int
    first_s: float
    total_s: float
    group: int
    group_s: float
    laps_ms: dict[str, float] = {}
    logged: int = 0


class Run(msgspec.Struct, frozen=True):
    """What ``run.json`` holds. ``arms``: each arm's server flags; ``boot_s``: start to first reply;
    ``round_log_ms``: what logging one round costs; ``shipped``: whether the target is."""

    provenance: Provenance
    arms: dict[str, list[str]]
    boot_s: dict[str, float]
    round_log_ms: float
    shipped: bool = False


RUN, ROWS = "run.json", "rows.jsonl"


@contextmanager
def keeping(folder: Path | None, run: Run) -> Iterator[Callable[[Row], None]]:
    """Yields a function that writes a row to ``rows.jsonl`` at once, so that an interrupted run can
    be shown. ``run.json`` is written before the first row and again after the last. Without a
    folder nothing is written."""
    if folder is None:
        yield lambda row: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows = Lines(folder / ROWS)
    try:
        write_json(folder / RUN, run)
        yield rows.add
    finally:
        rows.close()
    write_json(folder / RUN, run)


def load(folder: Path) -> tuple[Run, list[Row]]:
    """A kept run. A last row that was cut short is left out."""
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    try:
        run = msgspec.json.decode((folder / RUN).read_bytes(), type=Run)
        decode = msgspec.json.Decoder(Row).decode
        return run, [decode(line) for line in lines if line.endswith(b"\n")]
    except msgspec.MsgspecError as error:
        raise ValueError(f"{folder} holds no run of bench: {error}") from error


class Prompt(NamedTuple):
    """One prompt in one arm: medians over the repeats. ``rate_s``: the seconds that end-to-end
    throughput divides by (its group's, shared equally)."""

    tokens: int
    rounds: float
    decode_s: float
    rate_s: float


class Interval(msgspec.Struct, frozen=True):
    """95 %; NaN where one prompt is all there is."""

    value: float
    low: float
    high: float


def select(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """Rows whose fields equal ``wanted``; the task ``all`` is every task."""
    if wanted.get("task") == POOLED:
        del wanted["task"]
    return [r for r in rows if all(getattr(r, name) == value for name, value in wanted.items())]


def accept_length(rows: Sequence[Row]) -> float:
    """Tokens a round yields, bonus included, pooled over rounds: a request's first token comes
    from its prefill and is left out, and so are tokens accepted beyond the end of the answer."""
    return _ratio(sum(len(r.ids) - 1 for r in rows), sum(r.rounds for r in rows))


def prompts(rows: Sequence[Row]) -> dict[int, Prompt]:
    """Medians over the repeats of one arm's rows, by prompt."""
    sizes: dict[tuple, int] = defaultdict(int)
    by_prompt: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        sizes[row.repeat, row.group] += 1
        by_prompt[row.prompt].append(row)
    return {
        prompt: Prompt(
            tokens=len(own[0].ids),
            rounds=median(r.rounds for r in own),
            decode_s=median(r.total_s - r.first_s for r in own),
            rate_s=median(r.group_s / sizes[r.repeat, r.group] for r in own),
        )
        for prompt, own in sorted(by_prompt.items())
    }


def decode_tok_s(own: Iterable[Prompt]) -> float:
    """One request's speed once its first token is out."""
    own = list(own)
    return _ratio(sum(p.tokens - 1 for p in own), sum(p.decode_s for p in own))


def end_to_end_tok_s(own: Iterable[Prompt]) -> float:
    """All tokens over all time, sending and prefill included."""
    own = list(own)
    return _ratio(sum(p.tokens for p in own), sum(p.rate_s for p in own))


def step_ms(own: Iterable[Prompt]) -> float:
    """Plain decoding: time after the first token, over tokens after the first."""
    return 1e3 / decode_tok_s(own)


def round_ms(own: Iterable[Prompt]) -> float:
    """Speculative decoding: time after the first token, over verify rounds."""
    own = list(own)
    return 1e3 * _ratio(sum(p.decode_s for p in own), sum(p.rounds for p in own))


def speedup(
    rate: Callable[[Iterable[Prompt]], float], ours: dict[int, Prompt], base: dict[int, Prompt]
) -> Interval:
    """``rate(ours) / rate(base)`` with a 95 % bootstrap interval: the prompts are resampled, each
    with its two arms."""
    from scipy.stats import bootstrap

    if ours.keys() != base.keys():
        raise ValueError(
            f"arms answered different prompts: {sorted(ours)} and {sorted(base)}; compare arms "
            "of one run"
        )
    keys = list(ours)

    def of(index: np.ndarray) -> float:
        chosen = [keys[i] for i in index]
        return rate(ours[k] for k in chosen) / rate(base[k] for k in chosen)

    value = of(np.arange(len(keys)))
    if len(keys) < 2:
        return Interval(value, float("nan"), float("nan"))
    result = bootstrap(
        (np.arange(len(keys)),),
        of,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(0),
    )
    return Interval(value, *map(float, result.confidence_interval))


def split_ms(rows: Sequence[Row]) -> dict[str, float]:
    """A round's milliseconds by phase; they add up to :func:`round_ms`. ``engine`` is what the
    phases leave of it: scheduling, batch set-up, output, and the wait between rounds.

    Needs rows of batch 1, where a request's decode time is its rounds' time and nothing else.
    """
    rows = [r for r in rows if r.logged]
    wrong = [r for r in rows if r.batch != 1 or r.logged != r.rounds]
    if wrong:
        raise ValueError(
            f"{len(wrong)} rows cannot be split: expected batch 1 and one log line a round, got "
            f"e.g. batch {wrong[0].batch}, {wrong[0].rounds} rounds, {wrong[0].logged} lines"
        )
    if not rows:
        return {}
    by_prompt: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt].append(row)
    own = prompts(rows)
    rounds = sum(p.rounds for p in own.values())
    split = {
        phase: sum(median(r.laps_ms[phase] for r in each) for each in by_prompt.values()) / rounds
        for phase in PHASES
    }
    return {**split, OVERHEAD: round_ms(own.values()) - sum(split.values())}


def identical(ours: Sequence[Row], base: Sequence[Row]) -> tuple[int, int]:
    """How many answers of ``ours`` have the ids that ``base`` has for their prompt, of how many.
    A prompt whose ids vary within ``base`` counts as different."""
    ids: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for row in base:
        ids[row.prompt].add(tuple(row.ids))
    return sum(ids[row.prompt] == {tuple(row.ids)} for row in ours), len(ours)


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")
