"""How well a reader reads: held-out samples through the served engine, greedy."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from ..server import Answer, Server, chat, serve
from ..tasks import TASKS, Sample, make
from ..tasks.score import right
from .build import loaded

PARALLEL = 8
LONGEST = 160  # tokens of an answer


class TaskScore(msgspec.Struct):
    """``accuracy``: share of answers with every value right (``tasks.score.right``);
    ``entropy``: nats, mean over all tokens of the reader's own greedy answers;
    ``tokens``: mean length of an answer."""

    task: str
    samples: int
    accuracy: float
    entropy: float
    tokens: float


def request(sample: Sample) -> dict:
    """A sample as ``/generate`` takes it."""
    data = io.BytesIO()
    sample.image.save(data, "PNG")
    picture = base64.b64encode(data.getvalue()).decode()
    return {"text": chat(sample.prompt, images=1), "images": [picture]}


def answers(server: Server, samples: list[Sample]) -> list[Answer]:
    asked = [request(sample) for sample in samples]
    return server.generate_all(asked, PARALLEL, max_new_tokens=LONGEST)


@torch.no_grad()
def entropies(folder: Path, samples: list[Sample], told: list[Answer]) -> Iterator[torch.Tensor]:
    """Entropy of the next-token distribution at each token of an answer, teacher-forced."""
    model, processor = loaded(folder)
    model.eval()
    for sample, answer in zip(samples, told, strict=True):
        text = chat(sample.prompt, images=1)
        inputs = processor(text=[text], images=[sample.image], return_tensors="pt")
        ids = torch.cat([inputs["input_ids"], torch.tensor([answer.ids])], dim=1)
        image = ids == model.config.image_token_id
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=image.int(),
            logits_to_keep=len(answer.ids) + 1,
        ).logits[0, :-1]
        yield torch.distributions.Categorical(logits=logits.float()).entropy()


def measured(folder: Path, log: Path, count: int, shown: int = 0) -> Iterator[TaskScore]:
    """``count`` held-out samples a task; ``shown`` wrong answers a task are printed."""
    with serve(folder, log, "--dtype", "float32") as server:
        for task in TASKS:
            samples = [make(task, "heldout", index) for index in range(count)]
            told = answers(server, samples)
            good = [right(task, a.text, s.values) for s, a in zip(samples, told, strict=True)]
            wrong = [
                pair
                for pair, ok in zip(zip(samples, told, strict=True), good, strict=True)
                if not ok
            ]
            for sample, answer in wrong[:shown]:
                print(f"  {task}: {sample.prompt!r} {answer.text!r}, expected {sample.values}")
            nats = torch.cat(list(entropies(folder, samples, told)))
            yield TaskScore(task, count, sum(good) / count, nats.mean().item(), len(nats) / count)
