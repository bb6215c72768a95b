"""The training loop: Muon on matrices, AdamW on the rest, a checkpoint every few minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from sglang.glance.cli.files import whole
from sglang.glance.train.muon import Muon
from torch.nn.functional import cross_entropy, linear
from transformers import Qwen3VLForConditionalGeneration

from .build import built, loaded, saved
from .data import IGNORED, POOL, Batch, batches
from .marks import Marks

WARM_UP = 50
MATRIX_LR, OTHER_LR = 3e-3, 1e-3
CLIP = 1.0
MARKS = 0.5  # weight of the second lesson


@dataclass
class Progress:
    """What a checkpoint keeps beside weights and optimizer. ``losses``: nats a token, a step;
    ``runs``: the step and the command of each start."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    runs: list[tuple[int, str]] = field(default_factory=list)


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices; AdamW for embeddings, norms, biases and the patch filter."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        matrix = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if matrix else others).append(weight)
    return [Muon(matrices, MATRIX_LR), torch.optim.AdamW(others, lr=OTHER_LR, weight_decay=0.0)]


def rate(step: int, steps: int) -> float:
    """Warm-up, then a straight line to zero."""
    return min((step + 1) / WARM_UP, max(0.0, (steps - step) / max(1, steps - WARM_UP)))


def fast_bfloat16() -> bool:
    """Whether this CPU's products in bfloat16 are faster than in float32: elsewhere torch is forty
    times slower in it."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def positions(model: Qwen3VLForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Rotary positions int64 ``[3, rows, longest]``; each branch goes on at its head's end."""
    found = batch.after.clamp_min(0).repeat(3, 1, 1)
    for number, head in enumerate(batch.heads):
        ids = batch.ids[number : number + 1, :head]
        grid = batch.grids[number : number + 1]
        kinds = (ids == model.config.image_token_id).int()
        at, _ = model.model.get_rope_index(ids, kinds, image_grid_thw=grid)
        found[:, number, :head] = at[:, 0]
        found[:, number, head:] += at.max() + 1
    return found


def states(model: Qwen3VLForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """The last layer's normed states, float32 ``[rows, longest, hidden]``."""
    hidden = torch.zeros(batch.seen.shape).masked_fill(~batch.seen, torch.finfo(torch.float32).min)
    return model.model(
        input_ids=batch.ids,
        attention_mask=hidden,
        position_ids=positions(model, batch),
        pixel_values=batch.pixels,
        image_grid_thw=batch.grids,
        mm_token_type_ids=(batch.ids == model.config.image_token_id).int(),
        use_cache=False,
    )[0]


def answer_loss(model: Qwen3VLForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Cross-entropy in nats: the mean over answers of the mean over their tokens."""
    told = batch.labels[:, 1:] != IGNORED
    logits = model.lm_head(states(model, batch)[:, :-1][told])
    losses = cross_entropy(logits, batch.labels[:, 1:][told], reduction="none")
    return losses @ batch.weights[:, 1:][told]


def compiled(model: Qwen3VLForConditionalGeneration) -> None:
    """The same forward pass, faster: layers compiled, the patch filter as the product that it is
    (its stride is its size, and a convolution's backward pass is slow)."""
    filters = model.model.visual.patch_embed
    filters.forward = lambda patches: linear(
        patches, filters.proj.weight.flatten(1), filters.proj.bias
    )
    for layer in model.model.language_model.layers:
        layer.compile(dynamic=True)
    for block in model.model.visual.blocks:
        block.mlp.compile(dynamic=True)


class Training:
    """A run in a folder: ``checkpoint.pt`` to go on from, ``reader/`` as it is served. The vision
    tower learns the second lesson alone for ``tower_steps`` of all ``steps``; ``factor`` multiplies
    the learning rates. Products are in bfloat16 where that is faster; weights are in float32."""

    def __init__(
        self,
        folder: Path,
        start: Path,
        steps: int,
        size: int,
        *,
        tower_steps: int = 0,
        factor: float = 1.0,
        compile: bool = False,
    ) -> None:
        self.folder, self.steps, self.size = folder, steps, size
        self.tower_steps, self.factor = tower_steps, factor
        self.path = folder / "checkpoint.pt"
        self.progress = Progress()
        resumed = self.path.exists()
        self.model, self.processor = loaded(folder / "reader") if resumed else built(start)
        self.marks = Marks(
            self.model.model.visual.merger, self.model.config.text_config.hidden_size
        )
        self.optimizers = optimizers(self.model)
        self.optimizers[1].add_param_group({"params": list(self.marks.parameters())})
        # Before a checkpoint brings the rates of the step it was written at.
        self.rates = [group["lr"] for each in self.optimizers for group in each.param_groups]
        if resumed:
            self._resume()
        if compile:
            compiled(self.model)
        self.bf16 = fast_bfloat16()

    def _resume(self) -> None:
        """Float32 weights and optimizers as they were."""
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.marks.load_state_dict(state["marks"])
        for each, kept in zip(self.optimizers, state["optimizers"], strict=True):
            each.load_state_dict(kept)
        self.progress = Progress(**state["progress"])

    def save(self) -> None:
        """Written whole under another name first: an end in the middle loses nothing."""
        saved(self.model, self.processor, self.folder / "reader")
        state = {
            "model": self.model.state_dict(),
            "marks": self.marks.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "progress": vars(self.progress),
        }
        with whole(self.path) as part:
            torch.save(state, part)

    def step(self, batch: Batch) -> float:
        """Loss of the answers; of the second lesson, while the tower learns it alone."""
        factor = self.factor * rate(self.progress.step, self.steps)
        groups = [group for each in self.optimizers for group in each.param_groups]
        for group, full in zip(groups, self.rates, strict=True):
            group["lr"] = full * factor
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            if self.progress.step < self.tower_steps:
                self.model.model.visual(batch.pixels, batch.grids)
                loss = self.marks.loss(batch.marks)
                loss.backward()
            else:
                loss = answer_loss(self.model, batch)
                (loss + MARKS * self.marks.loss(batch.marks)).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for each in self.optimizers:
                each.step()
                each.zero_grad(set_to_none=True)
        return loss.item()

    def run(self, every_s: float, minutes: float, tell: Callable[[Progress], None]) -> None:
        """Until ``steps`` or ``minutes`` are over; resumed, on with the next pool of samples."""
        progress, begun = self.progress, time.monotonic()
        kept = begun
        pool = POOL * self.size
        start = -(-progress.step * self.size // pool) * pool
        self.model.train()
        for batch in batches(self.processor, start, self.size):
            if progress.step >= self.steps or time.monotonic() - begun > 60 * minutes:
                break
            before = time.monotonic()
            progress.losses.append(self.step(batch))
            progress.step += 1
            progress.seconds += time.monotonic() - before
            tell(progress)
            if time.monotonic() - kept > every_s:
                self.save()
                kept = time.monotonic()
        self.save()
