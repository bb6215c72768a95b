"""Tries row after row, whatever happens in one, and keeps every verdict as soon as it is known."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Literal

import msgspec
from builders.features import Expected
from builders.prompts import picture_prompts
from gpu.checks import Asked
from gpu.fleet import Fleet, NotUp, tail
from gpu.rows import Row, Setup
from harness import Plain
from sglang.glance.cli.files import write_json
from sglang.glance.measure.provenance import Provenance
from sglang.glance.shipped import PICTURES

LEAST_S = 5  # a row with less is left out
START_TIMEOUT_S = 180


class Outcome(msgspec.Struct):
    """``numbers``: what the check measured; ``log``: the end of the server's, where it failed."""

    row: str
    verdict: Literal["ok", "failed", "left out"]
    reason: str = ""
    seconds: float = 0.0
    numbers: dict[str, Any] = {}
    log: list[str] = []


class Report(msgspec.Struct):
    """``finished``: False in what an aborted run leaves."""

    provenance: Provenance
    device: str
    minutes: float
    planned: int
    finished: bool = False
    seconds: float = 0.0
    verdicts: dict[str, int] = {}
    rows: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.rows.append(outcome)
        self.verdicts[outcome.verdict] = self.verdicts.get(outcome.verdict, 0) + 1


class OverBudget(Exception):
    pass


SLOW = (OverBudget, NotUp, TimeoutExpired)  # what a run that is at its end may end by


def within(seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` returns or raises; :class:`OverBudget` if it takes longer, and then it is left
    to itself."""
    said: queue.SimpleQueue = queue.SimpleQueue()

    def run() -> None:
        try:
            said.put((work(), None))
        except BaseException as error:  # noqa: BLE001  raised again below
            said.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        numbers, error = said.get(timeout=seconds)
    except queue.Empty:
        raise OverBudget(f"not done after {seconds:.0f} s") from None
    if error is not None:
        raise error
    return numbers


class Runner:
    """``clock``: seconds, as ``time.monotonic``."""

    def __init__(
        self,
        rows: Sequence[Row],
        fleet: Fleet,
        report: Report,
        path: Path,
        left_out: Callable[[Row], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows, self.fleet, self.report, self.path = rows, fleet, report, path
        self.left_out, self.clock = left_out, clock
        self.started = clock()
        self.pictures = picture_prompts(PICTURES)
        self.references: dict[Setup, tuple[Plain, Expected]] = {}
        self.broken: dict[Setup, str] = {}

    @property
    def spent(self) -> str:
        return f"{self.report.minutes:g} minutes were spent"

    @property
    def left_s(self) -> float:
        return 60 * self.report.minutes - (self.clock() - self.started)

    def run(self, tell: Callable[[Outcome], None]) -> Report:
        self.fleet.boot_ahead()
        try:
            for row in self.rows:
                outcome = self.outcome(row)
                self.fleet.done(row)
                self.report.add(outcome)
                self.write()
                tell(outcome)
            self.report.finished = True
            self.write()
        finally:
            self.fleet.close()
        return self.report

    def write(self) -> None:
        self.report.seconds = round(self.clock() - self.started, 1)
        write_json(self.path, self.report)

    def outcome(self, row: Row) -> Outcome:
        reason = self.left_out(row) or self.broken.get(row.setup)
        if reason is None and self.left_s < LEAST_S:
            reason = self.spent
        if reason is not None:
            return Outcome(row.name, "left out", reason)
        outcome, began, server = Outcome(row.name, "failed"), self.clock(), None
        try:
            check = row.check
            if row.setup is not None:
                asked = self.asked(row)
                began, server, check = self.clock(), asked.ours, partial(row.check, asked)
            budget_s = max(0, min(row.budget_s, self.left_s))
            outcome.numbers = check(budget_s) if server is None else within(budget_s, check)
            outcome.verdict = "ok"
        except Exception as error:  # noqa: BLE001  whatever it is, the next rows are tried
            self.failed(row, error, server, outcome)
        outcome.seconds = round(self.clock() - began, 2)
        return outcome

    def failed(self, row: Row, error: Exception, server: Any, outcome: Outcome) -> None:
        """Fill in the outcome, and stop a server of which later rows can expect nothing."""
        outcome.reason = f"{type(error).__name__}: {error}"
        outcome.numbers = getattr(error, "numbers", {})
        outcome.log = getattr(error, "log", []) if server is None else tail(server)
        if isinstance(error, NotUp):
            self.broken[row.setup] = f"a server did not start: see {row.name}"
        elif isinstance(error, OverBudget):
            self.broken[row.setup] = f"its server was stopped: see {row.name}"
        elif server is not None and server.process.poll() is not None:
            self.broken[row.setup] = f"its server ended: see {row.name}"
        if row.setup in self.broken:
            self.fleet.stop(row.setup)
        if isinstance(error, SLOW) and self.left_s < LEAST_S:
            outcome.verdict, outcome.reason = "left out", self.spent

    def asked(self, row: Row) -> Asked:
        """With the row's servers up."""
        ours, plain = self.fleet.get(row, min(START_TIMEOUT_S, self.left_s))
        known = self.references.setdefault(row.setup.reference, (Plain(plain), Expected(plain)))
        setup, device = row.setup, self.report.device
        return Asked(ours, *known, setup.dtype, device, setup.tree, self.pictures)
