"""Per-round records, off by default: one JSON line a round for the benchmark and the law."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import torch
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.law import entropy

ROUND_LOG_ENV = "SGLANG_GLANCE_ROUND_LOG"
LOGGING = "log"  # the lap of what only the record needs


class Round(msgspec.Struct):
    """One round of all running requests.

    laps_ms         milliseconds of each phase in order, then of the logging; by the device's clock
    accept_lens     per request
    budget          nodes verified a request, the root included
    max_drafts      most drafted tokens that a path of the tree can hold
    num_plain       number of requests that were allowed one token in this round
    rids            request ids, in the order of ``accept_lens``
    root_entropies  per request, nats: entropy of the target's distribution at the root, before
                    penalties, masks and temperature
    """

    laps_ms: dict[str, float]
    accept_lens: list[int]
    budget: int
    max_drafts: int
    num_plain: int
    rids: list[str]
    root_entropies: list[float]


class HostClock:
    """A CPU's time: what was asked for has been done."""

    waits = False

    def now(self) -> float:
        return time.perf_counter()

    def ms(self, began: float, ended: float) -> float:
        return (ended - began) * 1e3

    def wait(self, mark: float) -> None:
        pass


class DeviceClock:
    """A GPU's time: marks in its stream, read once the device has passed them."""

    waits = True

    def now(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def ms(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
        return began.elapsed_time(ended)

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()


@dataclass
class Pending:
    """A round whose values may still be on their way from the device. ``marks``: of the start, then
    of each phase's end; ``logging``: between these two the record's own work was done, inside the
    phase that ends at ``marks[logging_in]``."""

    marks: list[tuple[str, Any]] = field(default_factory=list)
    logging: tuple[Any, Any] | None = None
    logging_in: int = 0
    entropies: torch.Tensor | None = None
    accept_lens: torch.Tensor | None = None
    rids: list[str] = field(default_factory=list)
    num_plain: int = 0


class RoundLog:
    """Writes :class:`Round` lines to a file. Where values come from a device the round leaves marks
    in its stream and never waits: a thread of the log's own waits for them and writes."""

    def __init__(self, path: Path | None, device: str, config: GlanceConfig) -> None:
        self.file = None if path is None else path.open("ab", buffering=0)
        self.clock = DeviceClock() if device == "cuda" else HostClock()
        self.budget = config.budget
        self.max_drafts = config.max_depth
        self.pending: SimpleQueue[Pending] = SimpleQueue()
        self.start()
        if self.file is not None and self.clock.waits:
            threading.Thread(target=self._write_pending, name="round log", daemon=True).start()

    @classmethod
    def from_env(cls, device: str, config: GlanceConfig) -> RoundLog:
        """SGLang 0.5.23 lets no plugin add a flag, hence the environment variable."""
        path = os.environ.get(ROUND_LOG_ENV)
        return cls(Path(path) if path else None, device, config)

    def start(self) -> None:
        self.round = Pending()
        self.lap("start")

    def lap(self, phase: str) -> None:
        if self.file is not None:
            self.round.marks.append((phase, self.clock.now()))

    def roots(self, logits: torch.Tensor) -> None:
        """Keep the entropies at the roots of ``logits [bs * N, V]``, as the target gave them: what
        is drawn from them is adjusted in place. The time goes to no phase."""
        if self.file is not None:
            began = self.clock.now()
            self.round.entropies = entropy(logits[:: self.budget]).to("cpu", non_blocking=True)
            self.round.logging = began, self.clock.now()
            self.round.logging_in = len(self.round.marks)

    def end(self, accept_lens: torch.Tensor, rids: list[str], num_plain: int = 0) -> None:
        if self.file is None:
            return
        done = self.round
        done.accept_lens = accept_lens.to("cpu", non_blocking=True)
        done.rids, done.num_plain = rids, num_plain
        self.lap("end")  # behind the copies: once the device has passed it, they are there
        if self.clock.waits:
            self.pending.put(done)
        else:
            self._write(done)

    def _write_pending(self) -> None:
        while True:
            self._write(self.pending.get())

    def _write(self, done: Pending) -> None:
        self.file.write(msgspec.json.encode(self.record(done)) + b"\n")

    def record(self, done: Pending) -> Round:
        """Waits for the device to reach the round's end."""
        *marks, (_, end) = done.marks
        self.clock.wait(end)
        laps = {
            phase: self.clock.ms(began, ended) for (_, began), (phase, ended) in pairwise(marks)
        }
        if done.logging is not None:
            laps[LOGGING] = self.clock.ms(*done.logging)
            if done.logging_in < len(marks):
                laps[marks[done.logging_in][0]] -= laps[LOGGING]
        return Round(
            laps_ms=laps,
            accept_lens=done.accept_lens.tolist(),
            budget=self.budget,
            max_drafts=self.max_drafts,
            num_plain=done.num_plain,
            rids=done.rids,
            root_entropies=[] if done.entropies is None else done.entropies.tolist(),
        )
