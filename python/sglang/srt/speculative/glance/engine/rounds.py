"""Per-round records, off by default: one JSON line a round for the benchmark and the law."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import torch
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.law import entropy

ROUND_LOG_ENV = "SGLANG_GLANCE_ROUND_LOG"
LOGGING = "log"  # the lap of what only the record needs


class Round(msgspec.Struct):
    """``laps_ms``: wall-clock of each phase in order, and of logging; ``accept_lens``, ``rids``,
    ``root_entropies``: per request, the last in nats of the target's own distribution at the root,
    before penalties, masks, temperature or anything else; ``max_drafts``: of a path;
    ``num_plain``: requests that could take one token only, whatever the tree held."""

    laps_ms: dict[str, float]
    accept_lens: list[int]
    budget: int
    max_drafts: int
    num_plain: int
    rids: list[str]
    root_entropies: list[float]


class RoundLog:
    """Writes :class:`Round` lines to a file; a device is synchronised at each lap while on."""

    def __init__(self, path: Path | None, device: str, config: GlanceConfig) -> None:
        self.file = None if path is None else path.open("ab", buffering=0)
        self.device = device
        self.budget = config.budget
        self.max_drafts = config.max_depth
        self.laps: dict[str, float] = {}
        self.entropies: list[float] = []
        self.last = 0.0

    @classmethod
    def from_env(cls, device: str, config: GlanceConfig) -> RoundLog:
        """SGLang 0.5.23 lets no plugin add a flag, hence the environment variable."""
        path = os.environ.get(ROUND_LOG_ENV)
        return cls(Path(path) if path else None, device, config)

    def start(self) -> None:
        if self.file is not None:
            self.laps = {}
            self.last = self._now()

    def lap(self, phase: str) -> None:
        if self.file is not None:
            now = self._now()
            self.laps[phase] = (now - self.last) * 1e3
            self.last = now

    def roots(self, logits: torch.Tensor) -> None:
        """Keep the entropies at the roots of ``logits [bs * N, V]``, as the target gave them: what
        is drawn from them is adjusted in place. The time goes to no phase."""
        if self.file is not None:
            began = self._now()
            self.entropies = entropy(logits[:: self.budget]).tolist()
            spent = self._now() - began
            self.laps[LOGGING] = spent * 1e3
            self.last += spent

    def end(self, accept_lens: torch.Tensor, rids: list[str], num_plain: int = 0) -> None:
        if self.file is not None:
            record = Round(
                laps_ms=self.laps,
                accept_lens=accept_lens.tolist(),
                budget=self.budget,
                max_drafts=self.max_drafts,
                num_plain=num_plain,
                rids=rids,
                root_entropies=self.entropies,
            )
            self.file.write(msgspec.json.encode(record) + b"\n")

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
