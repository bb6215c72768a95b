"""Batches made while training: a picture with several questions a row, processor, padding.

The questions of a row share the picture and do not see each other: every one of them continues the
prompt's head (up to the picture's end) at the same positions.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sglang.glance.prompts.prompter import chat_text
from sglang.glance.prompts.rows import Prompt
from sglang.glance.tasks import questions, trace
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import ProcessorMixin

from .marks import labelled

IGNORED = -100
# The share of each task; more of what is hard to read.
SHARES = {"caption": 0.1, "scene_text": 0.22, "infographic": 0.2, "document": 0.2, "chart": 0.28}
# Questions about a picture; charts have the most kinds, and the shortest answers.
QUESTIONS = {"caption": 2, "scene_text": 3, "infographic": 3, "document": 3, "chart": 5}
POOL = 8  # batches sorted by length together, so that little is padding


@dataclass
class Row:
    """``branches``: (tokens of question and answer, how many of them are the question);
    ``marks [visual tokens, 2]``: see :mod:`.marks`."""

    head: list[int]
    branches: list[tuple[list[int], int]]
    pixels: torch.Tensor
    grid: torch.Tensor
    marks: torch.Tensor

    def __len__(self) -> int:
        return len(self.head) + sum(len(ids) for ids, _ in self.branches)


@dataclass
class Batch:
    """``ids``, ``labels``: int64 ``[rows, longest]``; ``weights``: float32, of each label's loss,
    one in sum; ``seen``: bool ``[rows, 1, longest,
    longest]``; ``after``: int64 ``[rows, longest]``, how far a token stands behind the head, -1
    within it; ``pixels``: float32 patches; ``grids``: int64 ``[rows, 3]``; ``marks``: of all
    visual tokens; ``heads``: the lengths of the heads."""

    ids: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    seen: torch.Tensor
    after: torch.Tensor
    pixels: torch.Tensor
    grids: torch.Tensor
    marks: torch.Tensor
    heads: list[int]


def row(index: int, processor: ProcessorMixin) -> Row:
    """The ``index``-th training picture with its questions; the shares draw its task."""
    task = random.Random(f"task/{index}").choices(tuple(SHARES), tuple(SHARES.values()))[0]
    head, branches, pixels, grid = [], [], None, None
    with trace.listening() as marks:
        samples = list(itertools.islice(questions(task, "train", index), QUESTIONS[task]))
    for sample in samples:
        text = chat_text(processor, Prompt(prompt=sample.prompt, image="the sample's"))
        before, end, question = text.partition("<|vision_end|>")
        if pixels is None:
            inputs = processor(text=[before + end], images=[sample.image], return_tensors="pt")
            head = inputs["input_ids"][0].tolist()
            pixels, grid = inputs["pixel_values"], inputs["image_grid_thw"][0]
        asked = processor.tokenizer.encode(question, add_special_tokens=False)
        told = processor.tokenizer.encode(f"{sample.answer}<|im_end|>", add_special_tokens=False)
        branches.append((asked + told, len(asked)))
    return Row(head, branches, pixels, grid, labelled(samples[0].image, marks))


def collated(rows: list[Row], pad: int) -> Batch:
    """Padded at the right; only answers have labels, at the place of the token itself. Every answer
    weighs the same: one that looks a single value up is as much to learn as one that lists all."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad)
    labels = torch.full_like(ids, IGNORED)
    after = torch.full_like(ids, -1)
    weights = torch.zeros(ids.shape)
    answers = sum(len(each.branches) for each in rows)
    seen = torch.eye(longest, dtype=torch.bool).repeat(len(rows), 1, 1, 1)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    for number, each in enumerate(rows):
        head = len(each.head)
        ids[number, :head] = torch.tensor(each.head)
        seen[number, 0, :, :head] = causal[:, :head]
        at = head
        for tokens, asked in each.branches:
            end = at + len(tokens)
            ids[number, at:end] = torch.tensor(tokens)
            labels[number, at + asked : end] = ids[number, at + asked : end]
            weights[number, at + asked : end] = 1 / (answers * (len(tokens) - asked))
            after[number, at:end] = torch.arange(end - at)
            seen[number, 0, at:end, at:end] = causal[at:end, at:end]
            at = end
    pixels = torch.cat([each.pixels for each in rows])
    grids = torch.stack([each.grid for each in rows])
    marks = torch.cat([each.marks for each in rows])
    heads = [len(each.head) for each in rows]
    return Batch(ids, labels, weights, seen, after, pixels, grids, marks, heads)


class Batches(IterableDataset):
    """Batches from the picture ``start`` on, without end."""

    def __init__(self, processor: ProcessorMixin, start: int, size: int) -> None:
        self.processor = processor
        self.start = start
        self.size = size

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        if get_worker_info():
            os.nice(19)  # the training's threads wait for each other: it takes what they leave
        pad = self.processor.tokenizer.pad_token_id
        index = self.start
        while True:
            rows = [row(index + k, self.processor) for k in range(POOL * self.size)]
            rows.sort(key=len)
            order = list(range(POOL))
            random.Random(index).shuffle(order)
            for place in order:
                yield collated(rows[place * self.size : (place + 1) * self.size], pad)
            index += len(rows)


def batches(processor: ProcessorMixin, start: int, size: int) -> Iterator[Batch]:
    """Made by one worker process ahead of the training."""
    made = Batches(processor, start, size)
    return iter(DataLoader(made, batch_size=None, num_workers=1, prefetch_factor=2 * POOL))
