"""Scores of a reader: what counts as right, and the entropy of its own tokens."""

from __future__ import annotations

import json

import pytest
import torch
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import load_prompts
from sglang.glance.reader.measure import own_entropies, score
from sglang.glance.shipped import PICTURES, READER
from sglang.glance.tasks.cli import Line
from sglang.glance.train.data import Row
from sglang.glance.train.target import Target

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_task_is_scored_by_its_own_answers() -> None:
    lines = [
        Line("0.png", "Read the total.", "-", "document", ["18.20"]),
        Line("1.png", "Describe the image.", "-", "caption", ["red circle"]),
        Line("2.png", "Read the total.", "-", "document", ["7.15"]),
    ]
    texts = ["The total is 18.20.", "a red circle", "The total is 7.16."]
    answers = [Row(number=n, prompt=line.prompt, num_prompt=5, ids=[1] * (n + 2), text=text)
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
    prompt = next(row for row in load_prompts(PICTURES) if row.task == "document")
    count = prompter.count(prompt)
    right = prompter.tokenizer(asked["answer"])["input_ids"] + [prompter.tokenizer.eos_token_id]
    row = Row(
        number=1, prompt=prompt.prompt, image=prompt.image, num_prompt=count, ids=right, text=""
    )
    (found,) = own_entropies(READER, prompter, [row])
    assert len(found) == len(right)
    model = Target(READER, prompter, (), "cpu", torch.float32).model
    for told in (0, 1, 5):
        with torch.inference_mode():
            logits = model(**prompter.inputs(prompt, right[:told])).logits[0, -1]
        wanted = torch.distributions.Categorical(logits=logits).entropy()
        assert found[told].item() == pytest.approx(wanted.item(), abs=1e-5)
    assert found.median() < 0.1  # its doubts are about phrasing, a few tokens of an answer
