"""What a line of the round log holds, and which lap its time goes to."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.engine.observe import round_log
from sglang.srt.speculative.glance.engine.observe.round_log import ROUND_LOG_ENV, Round, RoundLog

CONFIG = GlanceConfig(block=16, budget=4, topk=2, taps=(0,), mask_token_id=9)


def lines(path: Path) -> list[Round]:
    return [msgspec.json.decode(line, type=Round) for line in path.read_bytes().splitlines()]


def test_a_line_holds_the_entropies_at_the_roots(tmp_path: Path) -> None:
    path = tmp_path / "round_log.jsonl"
    log = RoundLog(path, "cpu", CONFIG)
    logits = torch.randn(3 * CONFIG.budget, 50, generator=torch.Generator().manual_seed(0))
    probabilities = torch.softmax(logits[:: CONFIG.budget].double(), -1).tolist()
    expected = [-math.fsum(p * math.log(p) for p in row) for row in probabilities]
    for number in range(2):
        log.start()
        log.lap("draft")
        log.roots(logits)
        logits[0] = 0.0  # adjusted in place before the round ends
        log.end(torch.tensor([1, 4, 2]), ["a", "b", "c"], num_plain=number)
    first, second = lines(path)
    assert first.root_entropies == pytest.approx(expected, rel=1e-5)
    assert second.root_entropies == pytest.approx([math.log(50), *expected[1:]], rel=1e-5)
    assert (first.accept_lens, first.rids, first.num_plain) == ([1, 4, 2], ["a", "b", "c"], 0)
    assert (first.budget, first.max_drafts) == (4, 3)
    assert list(first.laps_ms) == ["draft", "log"] and second.num_plain == 1


class Ticks:
    """A clock that tells the times it is given, in seconds."""

    waits = False

    def __init__(self, *times: float) -> None:
        self.times = iter(times)

    def now(self) -> float:
        return next(self.times)

    def ms(self, began: float, ended: float) -> float:
        return (ended - began) * 1e3

    def wait(self, mark: float) -> None:
        pass


def test_logging_takes_no_phase_s_time(tmp_path: Path) -> None:
    log = RoundLog(path := tmp_path / "round_log.jsonl", "cpu", CONFIG)
    log.clock = Ticks(0.0, 1.0, 3.0, 10.0, 14.0, 15.0, 16.0)
    log.start()
    log.lap("draft")
    log.roots(torch.zeros(4, 8))  # from 3 to 10
    log.lap("verify")
    log.lap("accept")
    log.end(torch.tensor([1]), ["a"])
    expected = {"draft": 1000.0, "verify": 6000.0, "accept": 1000.0, "log": 7000.0}
    assert lines(path)[0].laps_ms == pytest.approx(expected)


class FakeDevice:
    """Stands for a GPU: what is marked has passed only once `done` is set, or somebody waits.
    Keeps the names of the threads that waited."""

    def __init__(self) -> None:
        self.done, self.waited = threading.Event(), []
        self.marks = iter(range(1000))

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        mark = SimpleNamespace(at=None)

        def record() -> None:
            mark.at = next(self.marks)

        def synchronize() -> None:
            self.waited.append(threading.current_thread().name)
            assert self.done.wait(30)

        mark.record, mark.synchronize = record, synchronize
        mark.elapsed_time = lambda later: float(later.at - mark.at)
        return mark


def test_a_device_is_never_waited_for_by_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("synchronised"))
    log = RoundLog(path := tmp_path / "round_log.jsonl", "cuda", CONFIG)
    for number in range(3):  # the device has not reached the first one's end
        log.start()
        log.lap("draft")
        log.roots(torch.zeros(4, 8))
        log.lap("verify")
        log.end(torch.tensor([number]), ["a"])
    assert path.read_bytes() == b""
    device.done.set()
    limit = time.monotonic() + 30
    while path.read_bytes().count(b"\n") < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    assert [line.accept_lens for line in lines(path)] == [[0], [1], [2]]
    assert lines(path)[0].laps_ms == {"draft": 1.0, "verify": 2.0, "log": 1.0}
    assert set(device.waited) == {"round log"}


def test_off_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROUND_LOG_ENV, raising=False)
    monkeypatch.setattr(round_log, "entropy", lambda logits: pytest.fail("computed"))
    log = RoundLog.from_env("cpu", CONFIG)
    log.clock = None  # no time is asked for either
    log.start()
    log.roots(torch.zeros(4, 8))
    log.lap("verify")
    log.end(torch.tensor([1]), ["a"])
    monkeypatch.setenv(ROUND_LOG_ENV, str(tmp_path / "round_log.jsonl"))
    assert RoundLog.from_env("cpu", CONFIG).file is not None
