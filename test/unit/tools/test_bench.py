"""The order of asking, and how a round log is divided among requests."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from sglang.glance.cli import run as command
from sglang.glance.measure import bench
from sglang.glance.measure.bench import Arm, main, measure
from sglang.glance.measure.figures import PHASES
from sglang.glance.serving.arms import arms
from sglang.glance.serving.server import Answer

PROMPTS = [{"task": "document"}, {"task": "caption"}]


@dataclass
class FakeServer:
    """Answers 3 tokens in 2 rounds and logs 3: one more than the request needed."""

    name: str
    log: list
    round_log: Path | None = None

    def flush_cache(self) -> None:
        self.log.append((self.name, "flush"))

    def timed(self, prompt: dict, max_new_tokens: int) -> Answer:
        self.log.append((self.name, prompt["task"]))
        if self.round_log is None:
            return Answer([1, 2, 3], "", {}, 0.1, 0.3)
        with self.round_log.open("a") as file:
            for verify in (10, 20, 40):
                file.write(json.dumps({"laps_ms": dict.fromkeys(PHASES, verify)}) + "\n")
        return Answer([1, 2, 3], "", {"spec_verify_ct": 2}, 0.1, 0.2)


@pytest.fixture
def up(tmp_path: Path) -> tuple[list[Arm], list]:
    log: list = []
    rounds = tmp_path / "rounds"
    plain = Arm("plain", FakeServer("plain", log), tmp_path / "none")
    return [plain, Arm("glance", FakeServer("glance", log, rounds), rounds)], log


def test_arms_alternate_and_the_first_to_be_asked_rotates(up: tuple) -> None:
    servers, log = up
    rows = list(measure(servers, PROMPTS, "float32", 1, 2))
    assert log[:2] == [("plain", "flush"), ("glance", "flush")]
    asked = [entry for entry in log if entry[1] != "flush"]
    assert asked == [
        ("plain", "document"),
        ("glance", "document"),
        ("glance", "caption"),
        ("plain", "caption"),
        ("glance", "document"),
        ("plain", "document"),
        ("plain", "caption"),
        ("glance", "caption"),
    ]
    assert len(rows) == 8 and {row.repeat for row in rows} == {0, 1}


def test_a_request_gets_its_own_rounds_of_the_log(up: tuple) -> None:
    rows = list(measure(up[0], PROMPTS, "float32", 1, 1))
    for row in (row for row in rows if row.arm == "glance"):
        assert row.logged == row.rounds == 2
        assert row.laps_ms["verify"] == 30


def test_a_batch_shares_its_group_and_is_not_split(up: tuple) -> None:
    rows = list(measure(up[0], PROMPTS, "float32", 2, 1))
    for arm in ("plain", "glance"):
        own = [row for row in rows if row.arm == arm]
        assert len({(row.group, row.group_s) for row in own}) == 1
        assert all(not row.logged and not row.laps_ms for row in own)


def test_the_arms_of_heads_and_budgets() -> None:
    head = Path("head")
    assert list(arms(head)) == ["plain", "glance", "chain", "ngram"]
    every = arms(head, eagle3_head=Path("other"), budgets=[8, 64])
    assert list(every)[3:] == ["glance-8", "glance-64", "ngram", "eagle3", "eagle3-3", "ngram-32"]
    assert every["glance-64"][-2:] == ["--speculative-num-draft-tokens", "64"]
    assert every["eagle3"][-1] == "8" and every["eagle3-3"][-1] == "3"
    assert "other" in every["eagle3"] and "head" not in every["eagle3"]


def test_an_unknown_arm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model-path", "a/target", "--head-path", "a/head", "--arms", "eagle3"])
    assert "got eagle3; expected among plain, glance, chain, ngram" in capsys.readouterr().err


def test_plain_is_always_among_the_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(options: argparse.Namespace, chosen: dict, console: Console) -> None:
        asked.append(chosen)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run", run)
    assert command.run("bench", ["--arms", "ngram"]) == 130
    assert list(asked[0]) == ["plain", "ngram"]


def test_rows_that_cannot_be_asked_are_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": "Hello."},
        {"prompt": "a", "image": "gone.jpg"},
        {"prompt": "<|image_pad|>"},
        {"prompt": "b", "image": "https://host/b.jpg"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert command.run("bench", ["--requests", str(path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1 + (number == 0)] for number, line in enumerate(said)] == [
        f"picture {tmp_path / 'gone.jpg'} cannot be read",
        "the prompt has 1 image places for 0 images; it must not hold '<|image_pad|>' itself",
        "picture https://host/b.jpg",
    ]
