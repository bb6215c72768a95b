"""What we hand to SGLang's verify, read by SGLang's own code: its argument builders, its Triton
attention kernel and its greedy tree walk run here on our masks, links and positions."""

import random

import pytest
import torch
import verify_reference as reference
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.core.masks import full_mask
from sglang.srt.speculative.glance.core.tree import ancestor_mask, tree_links

NUM_SLOTS = 128


class Batch:
    """Two requests with trees of N nodes, whose KV lies in scattered slots."""

    def __init__(self, seed, device, num_nodes=12, prefix_lens=(7, 0)):
        rng = random.Random(seed)
        self.device = device
        self.num_nodes = num_nodes
        self.prefix_lens = list(prefix_lens)
        self.parents_of = [
            [-1] + [rng.randrange(n) for n in range(1, num_nodes)] for _ in prefix_lens
        ]
        free = rng.sample(range(NUM_SLOTS), sum(prefix_lens) + len(prefix_lens) * num_nodes)
        self.slots_of = []
        for prefix_len in prefix_lens:
            self.slots_of.append(free[: prefix_len + num_nodes])
            free = free[prefix_len + num_nodes :]
        self.parents = torch.tensor(self.parents_of, device=device)
        self.seq_lens = torch.tensor(self.prefix_lens, device=device)
        self.mask = full_mask(ancestor_mask(self.parents), self.seq_lens, sum(prefix_lens))


@pytest.mark.parametrize("seed", range(3))
def test_flashinfer_arguments_of_eagle_verify_input(device, seed):
    batch = Batch(seed, device)
    pool_rows = [2, 1]
    req_to_token = torch.zeros(4, 64, dtype=torch.int32, device=device)
    for row, slots in zip(pool_rows, batch.slots_of, strict=True):
        req_to_token[row, : len(slots)] = torch.tensor(slots)
    translator = KVIndexTranslator(
        req_to_token=req_to_token,
        token_to_kv_pool_allocator=None,
        token_to_kv_pool=None,
        page_size=1,
        device=str(device),
    )
    pool_rows = torch.tensor(pool_rows, device=device)
    plan = translator.plan(
        req_pool_indices=pool_rows,
        seq_lens=batch.seq_lens,
        seq_lens_cpu=batch.seq_lens.cpu(),
        write_virtual=None,
        read_extent=batch.num_nodes,
    )
    index, child, sibling = tree_links(batch.parents)
    verify_input = EagleVerifyInput(
        draft_token=index.flatten(),
        custom_mask=batch.mask,
        positions=None,
        retrieve_index=index,
        retrieve_next_token=child,
        retrieve_next_sibling=sibling,
        retrieve_cum_len=None,
        spec_steps=15,
        topk=8,
        draft_token_num=batch.num_nodes,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
    kv_indices, kv_indptr, qo_indptr, mask = verify_input.generate_attn_arg_prefill(
        req_pool_indices=pool_rows,
        paged_kernel_lens=batch.seq_lens,
        paged_kernel_lens_sum=sum(batch.prefix_lens),
        translator=translator,
        plan=plan,
    )
    built = [part.tolist() for part in (qo_indptr, kv_indptr, kv_indices, mask)]
    expected = reference.flashinfer_arguments(batch.parents_of, batch.prefix_lens, batch.slots_of)
    assert built == list(expected)


def attend(queries, keys, values, slots):
    """One query [heads, dim] over the K/V of `slots`, one KV head."""
    weights = torch.softmax(queries @ keys[slots, 0].T / queries.shape[-1] ** 0.5, dim=-1)
    return weights @ values[slots, 0]


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
    batch = Batch(0, device)
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(NUM_SLOTS, 1, 16, generator=generator).to(device) for _ in range(2))
    queries = torch.randn(2 * batch.num_nodes, 2, 16, generator=generator).to(device)
    out = run_triton_attention(batch, queries, keys, values, batch.mask)
    visible = [
        slots
        for parents, prefix_len, kv_slots in zip(
            batch.parents_of, batch.prefix_lens, batch.slots_of, strict=True
        )
        for slots in reference.visible_slots(parents, prefix_len, kv_slots)
    ]
    expected = torch.stack(
        [attend(query, keys, values, slots) for query, slots in zip(queries, visible, strict=True)]
    )
    tolerance = 2e-2 if device.type == "cuda" else 1e-5  # TF32 on a GPU
    assert torch.allclose(out, expected, atol=tolerance)
    causal = run_triton_attention(batch, queries, keys, values, None)
    assert not torch.allclose(causal, expected, atol=10 * tolerance)


@pytest.mark.parametrize("seed", range(4))
def test_sglangs_greedy_walk_over_our_links_is_our_walk(device, seed):
    batch = Batch(seed, device)
    shape = batch.parents.shape
    generator = torch.Generator().manual_seed(seed)
    # Few tokens make long walks; of siblings with the same token both walks take the first.
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
