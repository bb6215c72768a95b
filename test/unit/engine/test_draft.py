"""What reaches the head's embedding: the root and masks as they are, and a bad id raises."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.speculative.glance.engine.round.draft import BlockDrafter

VOCAB, BLOCK, MASK = 12, 4, 11
PADDED = 16  # rows of the LM head; those behind the vocabulary would win here


def drafter() -> tuple[BlockDrafter, list[torch.Tensor]]:
    """Its runner embeds the block's ids, as the host's does, and keeps them."""
    seen: list[torch.Tensor] = []
    plan = SimpleNamespace(bind=lambda forward_batch, translator: None)
    target = SimpleNamespace(
        model=SimpleNamespace(
            get_input_embeddings=lambda: torch.nn.Embedding(VOCAB, 8),
            lm_head=SimpleNamespace(org_vocab_size=VOCAB),
            logits_processor=SimpleNamespace(
                _compute_lm_head=lambda hidden, head: torch.arange(PADDED).expand(len(hidden), -1)
            ),
        ),
        device="cpu",
        kv_index_translator=SimpleNamespace(plan=lambda **lengths: plan),
    )
    runner = SimpleNamespace(model=SimpleNamespace(), kv_index_translator=None)

    def forward(forward_batch: object) -> SimpleNamespace:
        seen.append(forward_batch.input_ids)
        hidden = runner.model.forward_embed(forward_batch.input_ids)
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=hidden))

    runner.forward = forward
    config = SimpleNamespace(block=BLOCK, topk=3, mask_token_id=MASK)
    return BlockDrafter(config, target, runner), seen


def batch(size: int) -> SimpleNamespace:
    lens = torch.full((size,), 7)
    return SimpleNamespace(
        seq_lens=lens,
        seq_lens_cpu=lens,
        req_pool_indices=torch.arange(size),
        can_run_decode_cuda_graph=False,
        spec_info=None,
    )


def test_a_root_and_masks() -> None:
    drafts, seen = drafter()
    got = drafts.propose(batch(2), torch.tensor([3, 0]), torch.zeros(2, BLOCK, dtype=torch.int64))
    assert seen[0].view(2, BLOCK).tolist() == [[3, MASK, MASK, MASK], [0, MASK, MASK, MASK]]
    assert got.ids.shape == (2, BLOCK - 1, 3)
    assert got.ids.flatten().unique().tolist() == [VOCAB - 3, VOCAB - 2, VOCAB - 1]


@pytest.mark.parametrize("bad", [VOCAB, 2**31, -1])
def test_a_root_outside_the_vocabulary_raises(bad: int) -> None:
    """Nothing clamps it, and nothing is drafted behind a token that cannot be."""
    drafts, _ = drafter()
    with pytest.raises(IndexError):
        drafts.propose(batch(1), torch.tensor([bad]), torch.zeros(1, BLOCK, dtype=torch.int64))
