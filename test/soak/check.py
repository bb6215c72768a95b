"""What is checked of the traffic: a running tally, one wave at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psutil
from harness import assert_no_slot_lost
from sglang.glance.serving.server import Server
from soak.traffic import Outcome, differences, send, wave

WAVE, CLIENTS = 24, 12
# Arenas and caches fill during the first waves; what comes after may not grow by more than this.
SETTLED_AFTER, GROWTH_MIB = 5, 64


@dataclass
class Tally:
    """What the soak has seen. ``rss_mib``: after each wave."""

    seed: int
    waves: int = 0
    requests: int = 0
    compared_requests: int = 0
    compared_tokens: int = 0
    broken_off: int = 0
    retractions: int = 0
    divergences: int = 0
    slots_lost: int = 0
    kinds: Counter = field(default_factory=Counter)
    rss_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, got: Outcome, plain: Outcome, seed: int) -> None:
        self.requests += 1
        self.kinds[f"{got.ask.kind}, {got.ask.end}"] += 1
        self.retractions += got.retractions
        self.broken_off += got.ended in ("abort", "hung up")
        wrong = differences(got, plain)
        if got.ask.greedy:
            self.compared_requests += 1
            self.compared_tokens += sum(map(len, got.ids))
            self.divergences += any(line.startswith("ids") for line in wrong)
        self.failures += [
            f"SEED={seed}: {got.ask.kind}, {got.ask.end}, {got.ask.sampling}: {x}" for x in wrong
        ]


def rss_mib(server: Server) -> float:
    """Resident memory of the server and its children."""
    leader = psutil.Process(server.process.pid)
    own = [leader, *leader.children(recursive=True)]
    return sum(process.memory_info().rss for process in own) / 2**20


def grown_mib(rss: list[float]) -> float:
    """Growth from the settled start to the end, each the median of three waves or more."""
    settled = rss[SETTLED_AFTER:]
    if len(settled) < 6:
        return 0.0
    part = max(3, len(settled) // 4)
    first, last = sorted(settled[:part]), sorted(settled[-part:])
    return last[part // 2] - first[part // 2]


class PlainAnswers:
    """Plain decoding's whole answers; no greedy request is asked twice."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, Outcome] = {}

    def __call__(self, outcome: Outcome) -> Outcome:
        ask = outcome.ask
        if not ask.greedy:
            return Outcome(ask)
        own = {k: v for k, v in ask.request.get("extra", {}).items() if k != "rid"}
        key = json.dumps([ask.request["text"], ask.request.get("images"), ask.sampling, own])
        if key not in self.known:
            self.known[key] = send(self.server, ask, replay=True)
        return self.known[key]


def one_wave(glance: Server, plain: Callable, seed: int, tally: Tally) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = list(pool.map(lambda ask: send(glance, ask), wave(seed, WAVE)))
        for got, expected in zip(outcomes, pool.map(plain, outcomes), strict=True):
            tally.add(got, expected, seed)
    tally.waves += 1
    try:
        assert_no_slot_lost(glance)
    except (AssertionError, RuntimeError) as error:
        tally.slots_lost += 1
        tally.failures.append(f"SEED={seed}: {str(error)[:2000]}")
    tally.rss_mib.append(round(rss_mib(glance), 1) if glance.process.poll() is None else 0.0)
