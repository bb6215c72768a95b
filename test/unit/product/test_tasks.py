"""The five tasks: the same samples for a seed, nothing shared between the splits, scored right."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from PIL import Image
from sglang.glance import tasks
from sglang.glance.shipped import PICTURES
from sglang.glance.tasks import trace
from sglang.glance.tasks.cli import Line, sheet
from sglang.glance.tasks.phrases import expand, joined
from sglang.glance.tasks.score import normalised, right, things
from sglang.glance.tasks.values import split_of

COUNT = {"chart": 10}  # samples looked at a task and split; a chart takes 50 ms


@functools.cache
def some(task: str, split: str, count: int = 40) -> list[tasks.Sample]:
    return [tasks.make(task, split, index) for index in range(COUNT.get(task, count))]


def digest(sample: tasks.Sample) -> str:
    text = repr((sample.prompt, sample.answer, sample.values, sample.image.size))
    return hashlib.sha256(text.encode() + sample.image.tobytes()).hexdigest()


@pytest.mark.parametrize("task", tasks.TASKS)
def test_an_index_is_always_the_same_sample(task: str) -> None:
    random.seed(1)
    first = [digest(tasks.make(task, "train", index)) for index in range(3)]
    random.seed(2)
    again = [digest(tasks.make(task, "train", index)) for index in reversed(range(3))]
    assert again == first[::-1]
    assert len(set(first)) == len(first)


def test_the_shipped_pictures_are_the_first_held_out() -> None:
    lines = (PICTURES / "prompts.jsonl").read_bytes().splitlines()
    shipped = [msgspec.json.decode(line, type=Line) for line in lines]
    made = [tasks.make(task, "heldout", index) for index in range(4) for task in tasks.TASKS]
    assert [line.answer for line in shipped] == [sample.answer for sample in made]
    assert all((PICTURES / line.image).is_file() for line in shipped)


def test_another_process_makes_the_same_samples() -> None:
    code = (
        "from sglang.glance import tasks; import hashlib\n"
        "for task in tasks.TASKS:\n"
        "    sample = tasks.make(task, 'heldout', 3)\n"
        "    print(hashlib.sha256(sample.answer.encode() + sample.image.tobytes()).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    here = [tasks.make(task, "heldout", 3) for task in tasks.TASKS]
    digests = [hashlib.sha256(s.answer.encode() + s.image.tobytes()).hexdigest() for s in here]
    assert there.split() == digests


@pytest.mark.parametrize("task", tasks.TASKS)
def test_no_text_serves_both_splits(task: str) -> None:
    for split in tasks.SPLITS:
        for sample in some(task, split):
            words = [word for text in sample.texts for word in text.split()]
            assert {split_of(word) for word in words} <= {split}
            if task != "caption":
                assert words
    train = {digest(sample) for sample in some(task, "train")}
    assert train.isdisjoint(digest(sample) for sample in some(task, "heldout"))


@pytest.mark.parametrize("task", tasks.TASKS)
def test_an_answer_holds_its_values_and_another_does_not(task: str) -> None:
    samples = some(task, "heldout")
    wrong = 0
    for sample, other in zip(samples, samples[1:], strict=False):
        assert right(task, sample.answer, sample.values), sample.answer
        wrong += not right(task, other.answer, sample.values)
        assert not right(task, "", sample.values)
    assert wrong >= 0.6 * (len(samples) - 1)  # two charts may share a small number


@pytest.mark.parametrize("task", tasks.TASKS)
def test_answers_are_phrased_freely(task: str) -> None:
    samples = some(task, "train")
    assert len({sample.prompt for sample in samples}) > 3
    assert len({sample.kind for sample in samples}) > 1
    starts = {sample.answer.split()[0] for sample in samples}
    assert len(starts) > 3


@pytest.mark.parametrize("task", ["scene_text", "infographic", "document", "chart"])
def test_the_trace_says_where_each_character_stands(task: str) -> None:
    """All texts are told, with ink where they are told to be: turned signs and charts too."""
    for index in range(COUNT.get(task, 40)):
        with trace.listening() as marks:
            sample = tasks.make(task, "train", index)
        characters = [mark for mark in marks if isinstance(mark, trace.Character)]
        told = "".join(mark.text for mark in characters)
        assert all(word in told for text in sample.texts for word in text.split())
        grey = np.asarray(sample.image.convert("L"), dtype=int)
        for x, y, text in characters:
            if text.isalnum():
                left, top = max(0, round(x) - 5), max(0, round(y) - 3)
                around = grey[top : round(y) + 4, left : round(x) + 6]
                assert np.ptp(around) > 40, (index, x, y, text)


def test_nothing_is_told_when_nobody_listens() -> None:
    with trace.listening() as outer:
        with trace.listening() as inner:
            tasks.make("caption", "train", 0)
        assert inner and not outer


def test_right_wants_whole_values_in_their_order() -> None:
    assert right("document", "The total is 4.20, the name is ADA.", ["4.20", "ADA"])
    assert not right("document", "The name is ADA, the total is 4.20.", ["4.20", "ADA"])
    assert not right("document", "The total is 14.20, the name is ADA.", ["4.20", "ADA"])
    assert not right("chart", "ADA has 5", ["ADA", "5", "5"])
    assert normalised("- Total: 4.20\n* (Name)") == "TOTAL 4.20 NAME"


def test_a_caption_must_name_its_things_and_no_other() -> None:
    told = "A tiny crimson disc, then a violet ship on the sky."
    assert things(told) == ["red circle", "purple boat"]
    assert right("caption", told, ["red circle", "purple boat"])
    assert not right("caption", told, ["red circle"])
    assert not right("caption", told, ["purple boat", "red circle"])


def test_phrases() -> None:
    rng = random.Random(0)
    assert {expand("a[|b[c|d]]", rng) for _ in range(50)} == {"a", "abc", "abd"}
    with pytest.raises(ValueError, match="closed"):
        expand("a[b", rng)
    assert joined(["a"], rng) == "a"
    assert {joined(["a", "b"], rng) for _ in range(50)} == {"a and b", "a and then b", "a, and b"}


def test_the_command_writes_rows_pictures_and_sheets(tmp_path, capsys) -> None:
    assert tasks.main([str(tmp_path), "--count", "1", "--start", "7", "--split", "train"]) == 0
    lines = (tmp_path / "prompts.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=Line) for line in lines]
    assert [row.task for row in rows] == list(tasks.TASKS)
    for row in rows:
        sample = tasks.make(row.task, "train", 7)
        with Image.open(tmp_path / row.image) as image:
            assert image.tobytes() == sample.image.tobytes()
        assert (row.prompt, row.answer, row.values) == (
            sample.prompt,
            sample.answer,
            list(sample.values),
        )
    assert "sheet-caption.png" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tasks.main([str(tmp_path), "--count", "-1"])
    assert "--count -1" in capsys.readouterr().err


def test_a_sheet_has_a_cell_for_every_sample() -> None:
    image = sheet(some("document", "train", 7))
    assert image.size == (6 * 198 + 6, 2 * 198 + 6)
