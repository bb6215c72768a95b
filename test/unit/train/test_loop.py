"""Order, rates, updates, resuming: with a head of a few weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from sglang.glance.prompts.rows import InputError
from sglang.glance.train.blocks import Sampler
from sglang.glance.train.head import Head
from sglang.glance.train.loop import Plan, Trainer
from sglang.glance.train.loss import Vocabulary
from sglang.glance.train.muon import Muon, orthogonal
from sglang.glance.train.objective import BlockObjective

PLAN = Plan(
    recipe={"decay": 7.0},
    rows_hash="x",
    num_rows=6,
    steps=12,
    batch_rows=4,
    micro_rows=4,
    lr=0.01,
    seed=3,
    bf16=False,
    save_every=5,
)


@pytest.fixture
def trainer(config: dict, vocabulary: Vocabulary, make_row: Callable) -> Callable[..., Trainer]:
    rows = [make_row(10 + i, 4, seed=i) for i in range(PLAN.num_rows)]

    def make(folder: Path, **changes: object) -> Trainer:
        folder.mkdir(exist_ok=True)
        head = Head(config)
        head.initialise(seed=1)
        objective = BlockObjective(head, vocabulary, Sampler(4, 39, 3, 7.0, 0.3))
        plan = msgspec.structs.replace(PLAN, **changes)
        return Trainer(objective, rows.__getitem__, plan, folder)

    return make


def finish(trainer: Trainer) -> list:
    return trainer.run(lambda entry: None, lambda: 2.0)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in trainer.objective.module.parameters()])


def test_an_epoch_takes_every_row_once() -> None:
    rows = [row for step in range(3) for row in PLAN.rows(step)]
    assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))
    assert rows[:6] != rows[6:]


def test_rate_rises_then_falls_to_zero() -> None:
    plan = msgspec.structs.replace(PLAN, steps=100)
    rates = [plan.rate(step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])
    assert all(a >= b for a, b in zip(rates[4:], rates[5:]))
    assert 0 < rates[-1] < 1e-5


def test_the_loss_falls(trainer: Callable, tmp_path: Path) -> None:
    log = finish(trainer(tmp_path, steps=60))
    assert log[-1].loss < 0.8 * log[0].loss
    assert [entry.accept_len for entry in log if entry.step == 60] == [2.0]


@pytest.mark.parametrize("stop", [5, 7])
def test_resumed_equals_uninterrupted(trainer: Callable, tmp_path: Path, stop: int) -> None:
    """Stopped right after a checkpoint, and two updates past it."""
    whole = trainer(tmp_path / "whole")
    log = finish(whole)
    broken = trainer(tmp_path / "broken")
    done = []

    def interrupt(entry: object) -> None:
        done.append(entry)
        if len(done) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.run(interrupt, lambda: 2.0)
    again = trainer(tmp_path / "broken")
    assert again.step == 5
    assert finish(again) == log
    assert torch.equal(weights(again), weights(whole))


def test_micro_batches_sum_to_the_batch(trainer: Callable, tmp_path: Path) -> None:
    whole, parts = trainer(tmp_path / "a"), trainer(tmp_path / "b", micro_rows=3)
    a, b = finish(whole), finish(parts)
    assert b[-1].loss == pytest.approx(a[-1].loss, rel=1e-3)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-3, atol=1e-4)


def test_other_options_do_not_resume(trainer: Callable, tmp_path: Path) -> None:
    finish(trainer(tmp_path))
    trainer(tmp_path, micro_rows=2)  # what is in memory together changes nothing
    with pytest.raises(InputError, match=r"lr 0\.01, now 0\.02.*remove it"):
        trainer(tmp_path, lr=0.02)
    with pytest.raises(InputError, match="rows_hash x, now y"):
        trainer(tmp_path, rows_hash="y")


def test_bfloat16_products(trainer: Callable, tmp_path: Path) -> None:
    run = trainer(tmp_path, bf16=True, steps=60)
    log = finish(run)
    assert log[-1].loss < 0.85 * log[0].loss
    assert all(w.dtype == torch.float32 for w in run.objective.module.parameters())


def test_a_loss_that_is_not_finite(trainer: Callable, tmp_path: Path) -> None:
    broken = trainer(tmp_path)
    with torch.no_grad():
        broken.objective.module.norm.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match=r"loss of step 0 is nan: lower --lr"):
        finish(broken)


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_orthogonal_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values.min() > 0.5 and values.max() < 1.5


def test_muon_is_torchs_own() -> None:
    """Which multiplies in bfloat16, hence the tolerance."""
    ours, theirs = (torch.nn.Parameter(torch.ones(8, 12)) for _ in range(2))
    pair = (
        Muon([ours], lr=0.01),
        torch.optim.Muon([theirs], lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        gradient = torch.randn(8, 12, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in pair:
            optimizer.step()
    moved = (ours - 1).abs().mean()
    assert (ours - theirs).abs().mean() < 0.03 * moved
