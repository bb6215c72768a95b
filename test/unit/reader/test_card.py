"""The reader's model card says what its checkpoint and its scores say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from sglang.glance.reader.card import write_card
from sglang.glance.reader.measure import Score
from sglang.glance.shipped import READER


def test_the_card(tmp_path: Path) -> None:
    shutil.copy(READER / "config.json", tmp_path)
    weight = torch.zeros(3, 5)
    state = {
        "model": {"embed.weight": weight, "lm_head.weight": weight},
        "progress": {
            "step": 200,
            "seconds": 7200.0,
            "losses": [9.0] * 100 + [0.25] * 100,
            "runs": [(0, "reader OUT --steps 100"), (100, "reader OUT --steps 200")],
        },
    }
    torch.save(state, tmp_path / "checkpoint.pt")
    scores = [Score("chart", 100, 93, 0.1234, 31.5), Score("caption", 50, 45, 0.456, 20.0)]
    write_card(tmp_path, tmp_path / "checkpoint.pt", 16, scores)
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["num_parameters"], card["steps"], card["loss"]) == (15, 200, 0.25)
    assert card["scores"][0]["num_right"] == 93 and len(card["provenance"]["versions"]) > 3
    text = (tmp_path / "README.md").read_text()
    assert "| chart | 100 | 93% | 0.123 | 31.5 |" in text
    assert "| caption | 50 | 90% | 0.456 | 20.0 |" in text
    assert (
        "| time | 2.0 h in steps |" in text
        and "| from step 100 | `reader OUT --steps 200` |" in text
    )
