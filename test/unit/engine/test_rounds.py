"""What a line of the round log holds, and which lap its time goes to."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import pytest
import torch
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.law import entropy
from sglang.srt.speculative.glance.engine import rounds
from sglang.srt.speculative.glance.engine.rounds import ROUND_LOG_ENV, Round, RoundLog

CONFIG = GlanceConfig(block=16, budget=4, topk=2, taps=(0,), mask_token_id=9)


def lines(path: Path) -> list[Round]:
    return [msgspec.json.decode(line, type=Round) for line in path.read_bytes().splitlines()]


def test_a_line_holds_the_entropies_at_the_roots(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
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


def test_logging_takes_no_phase_s_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RoundLog(tmp_path / "rounds.jsonl", "cpu", CONFIG)

    def slow(logits: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return entropy(logits)

    monkeypatch.setattr(rounds, "entropy", slow)
    log.start()
    log.lap("draft")
    time.sleep(0.02)
    log.roots(torch.zeros(4, 8))
    time.sleep(0.02)
    log.lap("verify")
    log.lap("accept")
    assert log.laps["log"] >= 200
    assert 40 <= log.laps["verify"] < 150
    assert log.laps["accept"] < 40


def test_off_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROUND_LOG_ENV, raising=False)
    monkeypatch.setattr(rounds, "entropy", lambda logits: pytest.fail("computed"))
    log = RoundLog.from_env("cpu", CONFIG)
    log.start()
    log.roots(torch.zeros(4, 8))
    log.lap("verify")
    log.end(torch.tensor([1]), ["a"])
    assert log.laps == {} and log.entropies == []
    monkeypatch.setenv(ROUND_LOG_ENV, str(tmp_path / "rounds.jsonl"))
    assert RoundLog.from_env("cpu", CONFIG).file is not None
