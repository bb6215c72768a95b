"""What the GLANCE head brings to the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.glance.train.blocks import Batch, Sampler, TappedRow, collate
from sglang.glance.train.head import Head, layer_sizes
from sglang.glance.train.loss import Loss, Vocabulary, block_loss

MOST_TAPS = 5


class BlockObjective:
    def __init__(self, head: Head, vocabulary: Vocabulary, sampler: Sampler) -> None:
        self.module, self.vocabulary, self.sampler = head, vocabulary, sampler

    def prepare(self, rows: Sequence[TappedRow], generator: torch.Generator) -> Batch:
        batch = collate(rows, [self.sampler.draw(row, generator) for row in rows])
        return batch.to(self.vocabulary.lm_head.device)

    def loss(self, batch: Batch) -> Loss:
        return block_loss(self.module, self.vocabulary, batch)


def default_taps(num_layers: int) -> list[int]:
    """Five layers spread from the second to the fourth last; all that can be captured where the
    target has no room for that."""
    first, last = 1, num_layers - 3
    if last - first < MOST_TAPS - 1:
        return list(range(num_layers - 1))[-MOST_TAPS:]
    return [round(first + i * (last - first) / (MOST_TAPS - 1)) for i in range(MOST_TAPS)]


def head_config(
    text: Any, taps: Sequence[int], block: int, num_layers: int, mask: tuple[str, int]
) -> dict[str, Any]:
    """``config.json`` of a new head with the sizes of the target's layers.

    ``text``: the target's text config of transformers. ``mask``: token and id. Its rotary block is
    not copied: a target's three axes mean nothing to a head on plain token indices.
    """
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block,
        "dflash_config": {
            "target_layer_ids": list(taps),
            "mask_token": mask[0],
            "mask_token_id": mask[1],
            "block_size": block,
            "num_target_layers": text.num_hidden_layers,
        },
        "num_target_layers": text.num_hidden_layers,
        "num_hidden_layers": num_layers,
        **layer_sizes(text),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": float(text.rope_parameters["rope_theta"]),
        "rope_scaling": None,
        "max_position_embeddings": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "layer_types": ["full_attention"] * num_layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "dtype": "bfloat16",
    }


def mask_token(tokenizer: Any, vocab_size: int) -> tuple[str, int] | None:
    """A token that no text holds: the tokenizer's own mask, else the first row of the embedding
    that has no token. None where there is neither."""
    for name in ("<|mask|>", "<|MASK|>"):
        if name in tokenizer.get_vocab():
            return name, tokenizer.convert_tokens_to_ids(name)
    return ("<|MASK|>", len(tokenizer)) if len(tokenizer) < vocab_size else None
