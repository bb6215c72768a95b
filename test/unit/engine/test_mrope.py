"""A round's three-axis positions equal those SGLang stacks on the host."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.speculative.glance.engine.round.mrope import MropeDeltas

ROWS, WIDTH = 7, 5


def picture(delta: int) -> SimpleNamespace:
    return SimpleNamespace(mrope_position_delta=torch.tensor([[delta]]))


def hosts(node_positions: torch.Tensor, inputs: list) -> torch.Tensor:
    forward = SimpleNamespace(seq_lens=torch.zeros(len(inputs)))
    batch = SimpleNamespace(
        multimodal_inputs=inputs, spec_info=SimpleNamespace(positions=node_positions)
    )
    runner = SimpleNamespace(device="cpu")
    ForwardBatch.compute_spec_mrope_positions(forward, runner, batch)
    return forward.mrope_positions


def test_positions_equal_the_hosts_as_requests_come_and_go() -> None:
    """Rows are handed on: a text in a picture's old row has no delta."""
    rng, deltas = random.Random(0), MropeDeltas(ROWS, torch.device("cpu"))
    running: dict[int, SimpleNamespace | None] = {}
    seen = set()
    for _ in range(60):
        for row in [row for row in running if rng.random() < 0.4]:
            del running[row]
        fresh = rng.sample([row for row in range(1, ROWS) if row not in running], 1)
        given = [rng.choice([None, picture(-rng.randint(1, 400))]) for _ in fresh]
        all_texts = all(each is None for each in given) and rng.random() < 0.5
        deltas.note(torch.tensor(fresh), None if all_texts else given)
        running |= dict(zip(fresh, given, strict=True))
        rows = rng.sample(list(running), len(running))
        inputs = [running[row] for row in rows]
        node_positions = torch.randint(400, 900, (len(rows) * WIDTH,))
        ours = deltas.positions(torch.tensor(rows), node_positions)
        expected = hosts(node_positions, inputs)
        assert ours.dtype == expected.dtype and torch.equal(ours, expected)
        seen.add(sum(each is None for each in inputs) / len(inputs))
    assert {0.0, 1.0} <= seen and len(seen) > 3  # pictures, texts and mixed batches
