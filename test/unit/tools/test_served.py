"""What a measurement writes into a head's model card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang.glance.measure.figures import Row, Run
from sglang.glance.measure.provenance import describe
from sglang.glance.measure.served_card import HEADING, write_served

FLAGS = ["--speculative-draft-model-path", "/some/where/head"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "card.json").write_text('{"num_parameters": 7}')
    (tmp_path / "README.md").write_text("# A head\n\nText.\n")
    return tmp_path


def measured(*arms: str) -> Run:
    return Run(describe([]), {"plain": [], **dict.fromkeys(arms, FLAGS)}, {}, 0.0)


def test_figures_by_arm_and_task(folder: Path, two_arms: list[Row]) -> None:
    write_served(folder, measured("glance"), two_arms)
    card = json.loads((folder / "card.json").read_text())
    assert card["num_parameters"] == 7
    glance = card["served"]["glance"]
    assert glance["accept_length"] == {"document": 2.0, "caption": 1.0, "all": 1.5}
    assert (glance["identical"], glance["requests"]) == (2, 2)
    assert glance["flags"] == ["--speculative-draft-model-path", "head"]
    text = (folder / "README.md").read_text()
    assert text.startswith("# A head\n\nText.\n")
    assert "| glance | float32 | 2.00 | 1.00 | 1.50 | 2 of 2 |" in text


def test_a_second_run_adds_its_arms(folder: Path, two_arms: list[Row], make_row) -> None:
    write_served(folder, measured("glance"), two_arms)
    other = [make_row(), make_row("chain", ids=[1, 2, 3, 4, 9], rounds=4)]
    write_served(folder, measured("chain"), other)
    text = (folder / "README.md").read_text()
    assert text.count(HEADING) == 1
    assert "| glance | float32 | 2.00 | 1.00 | 1.50 | 2 of 2 |" in text
    assert "| chain | float32 | 1.00 |  | 1.00 | 0 of 1 |" in text
