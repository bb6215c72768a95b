"""Per-round records, off by default: one JSON line a round for the benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import torch

ROUND_LOG_ENV = "SGLANG_GLANCE_ROUND_LOG"


class Round(msgspec.Struct):
    """``laps_ms``: wall-clock of each phase in order; ``accept_lens``: per request;
    ``num_plain``: requests that could take one token only, whatever the tree held."""

    laps_ms: dict[str, float]
    accept_lens: list[int]
    budget: int
    num_plain: int


class RoundLog:
    """Writes :class:`Round` lines to a file; a device is synchronised at each lap while on."""

    def __init__(self, path: Path | None, device: str, budget: int) -> None:
        self.file = None if path is None else path.open("ab", buffering=0)
        self.device = device
        self.budget = budget
        self.laps: dict[str, float] = {}
        self.last = 0.0

    @classmethod
    def from_env(cls, device: str, budget: int) -> RoundLog:
        """SGLang 0.5.23 lets no plugin add a flag, hence the environment variable."""
        path = os.environ.get(ROUND_LOG_ENV)
        return cls(Path(path) if path else None, device, budget)

    def start(self) -> None:
        if self.file is not None:
            self.laps = {}
            self.last = self._now()

    def lap(self, phase: str) -> None:
        if self.file is not None:
            now = self._now()
            self.laps[phase] = (now - self.last) * 1e3
            self.last = now

    def end(self, accept_lens: torch.Tensor, num_plain: int = 0) -> None:
        if self.file is not None:
            record = Round(self.laps, accept_lens.tolist(), self.budget, num_plain)
            self.file.write(msgspec.json.encode(record) + b"\n")

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
