"""Rounds as the law reads them, from the engine's round log and what was asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from sglang.glance.cli.failures import Failed


class LawRow(msgspec.Struct, frozen=True):
    """One round of one request. ``entropy``: nats at the root; ``num_correct_drafts``: accepted
    without the bonus, and delivered; ``budget``: nodes verified, root included; ``max_drafts``: the
    most that a path can hold."""

    task: str
    request: str
    entropy: float
    num_correct_drafts: int
    budget: int
    max_drafts: int


class Line(msgspec.Struct):
    """What is read of a line of the round log."""

    accept_lens: list[int]
    budget: int
    max_drafts: int
    rids: list[str]
    root_entropies: list[float]


class Asked(NamedTuple):
    """One answered request. ``num_tokens``: delivered; ``rounds``: as the server counts them."""

    task: str
    num_tokens: int
    rounds: int


def join(lines: Iterable[Line], asked: Mapping[str, Asked]) -> list[LawRow]:
    """The rounds of the requests in ``asked`` (by request id), in the order of the log.

    What a round accepted beyond the end of an answer nobody asked for: it is not counted. Under
    overlap scheduling a round more is started than a finished request needed: it is left out.
    """
    rows = []
    rounds: dict[str, int] = defaultdict(int)
    left = {rid: each.num_tokens - 1 for rid, each in asked.items()}  # one came from prefill
    for line in lines:
        per_request = zip(line.rids, line.root_entropies, line.accept_lens, strict=True)
        for rid, entropy, accept_len in per_request:
            if rid not in asked or rounds[rid] == asked[rid].rounds:
                continue
            drafts = min(accept_len - 1, left[rid])
            rows.append(LawRow(asked[rid].task, rid, entropy, drafts, line.budget, line.max_drafts))
            rounds[rid] += 1
            left[rid] -= accept_len
    for rid, each in asked.items():
        if rounds[rid] != each.rounds:
            raise Failed(
                f"request {rid}: the server counts {each.rounds} rounds, its round log holds "
                f"{rounds[rid]}; is the log this server's, and from the start?"
            )
    return rows


def read_log(path: Path) -> list[Line]:
    if not path.exists():
        raise Failed(f"no round log at {path}: the server verified no draft")
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]


def save_rows(path: Path, rows: Iterable[LawRow]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def load_rows(path: Path) -> list[LawRow]:
    """Raises ``ValueError`` with the line that is not a row."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(msgspec.json.decode(line, type=LawRow))
        except msgspec.MsgspecError as error:
            fields = ", ".join(LawRow.__struct_fields__)
            raise ValueError(f"{path}:{number}: {error}; expected {fields}") from error
    if not rows:
        raise ValueError(f"{path} holds no rounds")
    return rows


def by_task(rows: Sequence[LawRow]) -> dict[str, list[LawRow]]:
    """Each task's rows, tasks in order of appearance."""
    out: dict[str, list[LawRow]] = {}
    for row in rows:
        out.setdefault(row.task, []).append(row)
    return out
