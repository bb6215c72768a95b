"""GLANCE's verify arguments, read by SGLang's code.

SGLang's argument builders, Triton attention kernel and greedy tree walk run on GLANCE's masks,
links and positions.
"""

import pytest
import torch
import verify_reference as reference
from builders.tree_batch import TreeBatch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.core.tree import tree_links


@pytest.mark.parametrize("seed", range(3))
def test_flashinfer_arguments_of_eagle_verify_input(device, seed):
    batch = TreeBatch(seed, device)
    arguments = [part.tolist() for part in batch.flashinfer_arguments()]
    expected = reference.flashinfer_arguments(batch.parents_of, batch.prefix_lens, batch.slots_of)
    assert arguments == list(expected)


def run_triton_attention(batch, queries, keys, values, mask):
    qo_indptr, kv_indptr, kv_indices, mask_indptr, _ = reference.triton_arguments(
        batch.parents_of, batch.prefix_lens, batch.slots_of
    )
    tree_slots = [
        slot
        for slots, prefix_len in zip(batch.slots_of, batch.prefix_lens, strict=True)
        for slot in slots[prefix_len:]
    ]
    indptr = [
        torch.tensor(part, dtype=torch.int32, device=batch.device)
        for part in (qo_indptr, kv_indptr)
    ]
    out = torch.empty_like(queries)
    extend_attention_fwd(
        queries,
        keys[tree_slots],
        values[tree_slots],
        out,
        keys,
        values,
        *indptr,
        torch.tensor(kv_indices, dtype=torch.int64, device=batch.device),
        mask,
        True,
        torch.tensor(mask_indptr, dtype=torch.int64, device=batch.device),
        batch.num_nodes,
        1.0,
        1.0,
    )
    return out


def test_triton_attention_gives_each_node_its_own_path(device):
    batch = TreeBatch(0, device)
    generator = torch.Generator().manual_seed(0)
    keys, values = (
        torch.randn(batch.num_slots, 1, 16, generator=generator).to(device) for _ in range(2)
    )
    queries = torch.randn(2 * batch.num_nodes, 2, 16, generator=generator).to(device)
    out = run_triton_attention(batch, queries, keys, values, batch.mask)
    expected = batch.slow_attention(queries, keys, values)
    tolerance = 2e-2 if device.type == "cuda" else 1e-5  # TF32 on a GPU
    assert torch.allclose(out, expected, atol=tolerance)
    causal = run_triton_attention(batch, queries, keys, values, None)
    assert not torch.allclose(causal, expected, atol=10 * tolerance)


@pytest.mark.parametrize("seed", range(4))
def test_sglangs_greedy_walk_over_our_links_equals_our_walk(device, seed):
    batch = TreeBatch(seed, device)
    shape = batch.parents.shape
    generator = torch.Generator().manual_seed(seed)
    # Three token ids make long walks. Of siblings with the same token, both walks take the first.
    tokens, drawn = (torch.randint(3, shape, generator=generator).to(device) for _ in range(2))
    max_depth = 5
    index, child, sibling = tree_links(batch.parents)
    accept_index = torch.full((2, max_depth + 1), -1, device=device)
    num_correct_drafts = torch.zeros(2, dtype=torch.int64, device=device)
    predicts = torch.full((index.numel(),), -1, device=device)
    verify_tree_greedy_triton(
        predicts, accept_index, num_correct_drafts, tokens, index, child, sibling, drawn
    )
    ours = walk(tokens, batch.parents, drawn, max_depth)
    rows = torch.where(ours.accept_index >= 0, ours.accept_index + index[:, :1], ours.accept_index)
    assert torch.equal(rows, accept_index)
    assert torch.equal(ours.accept_lens, num_correct_drafts + 1)
    reached = rows >= 0
    assert torch.equal(predicts[rows[reached]], ours.committed[reached])
