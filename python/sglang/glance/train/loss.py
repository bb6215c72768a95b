"""The block-diffusion loss: weighted cross-entropy through the target's frozen LM head."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from sglang.glance.train.blocks import Batch
from sglang.glance.train.head import Head
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 1 << 29  # of float32 logits at a time; they are computed again in the backward pass


class Vocabulary(NamedTuple):
    """The target's input embedding and LM head, ``[V, H]`` each, frozen."""

    embedding: Tensor
    lm_head: Tensor


class Loss(NamedTuple):
    """``total``: sum over places of weight times cross-entropy; ``num_right`` of ``num_places``
    predicted tokens are the target's."""

    total: Tensor
    num_right: int
    num_places: int


def block_loss(head: Head, vocabulary: Vocabulary, batch: Batch) -> Loss:
    hidden = run(head, vocabulary, batch)
    learns = batch.weights > 0
    hidden, labels, weights = hidden[learns], batch.labels[learns], batch.weights[learns]
    total, num_right = hidden.new_zeros(()), 0
    for part in chunks(len(hidden), vocabulary):
        losses, right = checkpoint(
            cross_entropy, hidden[part], vocabulary.lm_head, labels[part], use_reentrant=False
        )
        total = total + (losses * weights[part]).sum()
        num_right += int(right.sum())
    return Loss(total, num_right, len(hidden))


def run(head: Head, vocabulary: Vocabulary, batch: Batch) -> Tensor:
    embeds = F.embedding(batch.input_ids, vocabulary.embedding).float()
    return head(embeds, batch.positions, batch.taps.to(embeds.dtype), batch.mask)


def cross_entropy(hidden: Tensor, lm_head: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden.to(lm_head.dtype), lm_head).float()
    return F.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels


def chunks(num_places: int, vocabulary: Vocabulary) -> list[slice]:
    size = max(1, CHUNK_BYTES // (4 * len(vocabulary.lm_head)))
    return [slice(start, start + size) for start in range(0, num_places, size)]
