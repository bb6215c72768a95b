"""The training loop: which rows when, learning rate, updates, checkpoints. It knows no head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from sglang.glance.cli.failures import Failed
from sglang.glance.cli.files import whole
from sglang.glance.prompts.rows import InputError
from sglang.glance.train.loss import Loss
from sglang.glance.train.muon import Muon
from sglang.glance.train.taps import Tap
from torch import nn

WARMUP = 0.04
CLIP = 1.0
LOG_EVERY = 10


class Plan(msgspec.Struct, frozen=True):
    """``steps`` of ``batch_rows`` rows, ``micro_rows`` at a time. ``bf16``: products in bfloat16,
    weights and sums in float32. ``recipe``: the objective's settings. What a step does depends on
    this, the rows and its number only; ``rows_hash`` names the rows."""

    recipe: dict[str, Any]
    rows_hash: str
    num_rows: int
    steps: int
    batch_rows: int
    micro_rows: int
    lr: float
    seed: int
    bf16: bool
    save_every: int

    def rate(self, step: int) -> float:
        """Linear to the peak over the first 4 % of steps, then a half cosine to zero."""
        warmup = max(1, round(WARMUP * self.steps))
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup)))

    def rows(self, step: int) -> list[int]:
        """Rows of a step: consecutive slices of one permutation an epoch."""
        first, out, epoch, order = step * self.batch_rows, [], None, []
        for place in range(first, first + self.batch_rows):
            if epoch != (epoch := place // self.num_rows):
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(self.num_rows, generator=generator).tolist()
            out.append(order[place % self.num_rows])
        return out


class Objective(Protocol):
    """What a kind of head adds: batches made of rows, and their loss."""

    module: nn.Module

    def prepare(self, rows: Sequence[Any], generator: torch.Generator) -> Any:
        """A batch on the device, with its ``weights``."""

    def loss(self, batch: Any) -> Loss: ...


class Entry(msgspec.Struct, frozen=True):
    """A line of ``loss.jsonl``. ``loss``: nats a predicted token, weighted as trained;
    ``accuracy``: share of predicted tokens that are the target's; ``accept_len``: on the held-out
    rows, where measured."""

    step: int
    loss: float
    accuracy: float
    lr: float
    accept_len: float | None = None


class Trainer:
    """Runs ``plan`` from the last checkpoint in ``folder``, if there is one."""

    def __init__(self, objective: Objective, source: Tap, plan: Plan, folder: Path) -> None:
        self.objective, self.source, self.plan = objective, source, plan
        self.checkpoint, self.log = folder / "checkpoint.pt", folder / "loss.jsonl"
        parameters = list(objective.module.parameters())
        self.optimizers = [
            Muon([p for p in parameters if p.dim() == 2], plan.lr),
            torch.optim.AdamW([p for p in parameters if p.dim() < 2], plan.lr, weight_decay=0.0),
        ]
        self.step = self._resume()

    def run(self, advance: Callable[[Entry], None], measure: Callable[[], float]) -> list[Entry]:
        """All steps left. ``measure`` gives the held-out accept length, at every checkpoint."""
        entries = self._entries()
        with self.log.open("w") as log:
            log.writelines(msgspec.json.encode(entry).decode() + "\n" for entry in entries)
            while self.step < self.plan.steps:
                entry = self._update(self.step)
                self.step += 1
                saves = self.step % self.plan.save_every == 0 or self.step == self.plan.steps
                if saves:
                    entry = msgspec.structs.replace(entry, accept_len=measure())
                if saves or self.step % LOG_EVERY == 0:
                    entries.append(entry)
                    log.write(msgspec.json.encode(entry).decode() + "\n")
                    log.flush()
                if saves:
                    self._save()
                advance(entry)
        return entries

    def _update(self, step: int) -> Entry:
        plan, module = self.plan, self.objective.module
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        rows = sorted((self.source(i) for i in plan.rows(step)), key=lambda row: len(row.ids))
        batches = [
            self.objective.prepare(rows[start : start + plan.micro_rows], generator)
            for start in range(0, len(rows), plan.micro_rows)
        ]
        weight = float(sum(batch.weights.sum() for batch in batches))
        total, right, places = 0.0, 0, 0
        for batch in batches:
            with torch.autocast(batch.weights.device.type, torch.bfloat16, enabled=plan.bf16):
                loss = self.objective.loss(batch)
            (loss.total / weight).backward()
            total += float(loss.total.detach())
            right, places = right + loss.num_right, places + loss.num_places
        if not math.isfinite(total):
            raise Failed(
                f"the loss of step {step} is {total}: lower --lr; the last checkpoint in "
                f"{self.checkpoint.parent} is kept"
            )
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        rate = plan.rate(step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return Entry(step + 1, total / weight, right / places, rate)

    def _save(self) -> None:
        state = {
            "plan": msgspec.to_builtins(self.plan),
            "step": self.step,
            "module": self.objective.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        with whole(self.checkpoint) as part:
            torch.save(state, part)

    def _resume(self) -> int:
        if not self.checkpoint.exists():
            return 0
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        plan = msgspec.to_builtins(self.plan)
        changed = [key for key in plan if plan[key] != state["plan"][key] and key != "micro_rows"]
        if changed:
            was = ", ".join(f"{key} {state['plan'][key]}, now {plan[key]}" for key in changed)
            raise InputError(
                f"{self.checkpoint} was made with other options ({was}); give the same ones to "
                "resume, or remove it to start over"
            )
        self.objective.module.load_state_dict(state["module"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return state["step"]

    def _entries(self) -> list[Entry]:
        if not self.log.exists():
            return []
        lines = self.log.read_bytes().splitlines(keepends=True)
        whole = [msgspec.json.decode(ln, type=Entry) for ln in lines if ln.endswith(b"\n")]
        return [entry for entry in whole if entry.step <= self.step]
