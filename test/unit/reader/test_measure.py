"""Scores of a reader: what counts as right, and the entropy of its own tokens."""

from __future__ import annotations

import json

import pytest
import torch
from sglang.glance.assets import PICTURES, READER
from sglang.glance.reader.measure import own_entropies, score
from sglang.glance.tasks.cli import Line
from sglang.glance.train.data import Row, picture
from sglang.glance.train.target import Prompter, Target

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_task_is_scored_by_its_own_answers() -> None:
    lines = [
        Line("0.png", "Read the total.", "-", "document", ["18.20"]),
        Line("1.png", "Describe the image.", "-", "caption", ["red circle"]),
        Line("2.png", "Read the total.", "-", "document", ["7.15"]),
    ]
    texts = ["The total is 18.20.", "a red circle", "The total is 7.16."]
    answers = [Row(n, line.prompt, None, 5, [1] * (n + 2), text)
               for n, (line, text) in enumerate(zip(lines, texts))]  # fmt: skip
    entropies = [torch.tensor([0.0, 1.0]), torch.full((3,), 9.0), torch.full((4,), 0.5)]
    got = score("document", lines, answers, entropies)
    assert (got.num_answers, got.num_right, got.accuracy) == (2, 1, 0.5)
    assert got.entropy == pytest.approx((0.0 + 1.0 + 4 * 0.5) / 6)
    assert got.tokens == 3


def test_entropies_are_of_the_distribution_before_each_token() -> None:
    lines = map(json.loads, (PICTURES / "prompts.jsonl").read_text().splitlines())
    asked = next(line for line in lines if line["task"] == "document")
    prompter = Prompter(READER)
    image = picture(PICTURES, asked["image"])
    count = prompter.count(asked["prompt"], image)
    right = prompter.tokenizer(asked["answer"])["input_ids"] + [prompter.tokenizer.eos_token_id]
    row = Row(1, asked["prompt"], asked["image"], count, right, "")
    (found,) = own_entropies(READER, prompter, PICTURES, [row])
    assert len(found) == len(right)
    model = Target(READER, prompter, (), "cpu", torch.float32).model
    for told in (0, 1, 5):
        with torch.inference_mode():
            logits = model(**prompter.inputs(asked["prompt"], image, right[:told])).logits[0, -1]
        wanted = torch.distributions.Categorical(logits=logits).entropy()
        assert found[told].item() == pytest.approx(wanted.item(), abs=1e-5)
    assert found.median() < 0.1  # its doubts are about phrasing, a few tokens of an answer
