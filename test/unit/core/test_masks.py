import itertools
import random

import pytest
import torch
import verify_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.speculative.glance.core.masks import (
    fill_full_mask,
    full_mask,
    full_mask_numel,
    qlen_mask,
)
from sglang.srt.speculative.glance.core.tree import ancestor_mask


def random_batch(seed, bs, num_nodes, longest=40):
    """parents and prefix lengths of a batch, and disjoint, scattered KV slots for each request."""
    rng = random.Random(seed)
    parents_of = [[-1] + [rng.randrange(n) for n in range(1, num_nodes)] for _ in range(bs)]
    prefix_lens = [rng.randint(0, longest) for _ in range(bs)]
    free = rng.sample(range(10_000), sum(prefix_lens) + bs * num_nodes)
    slots_of = []
    for prefix_len in prefix_lens:
        count = prefix_len + num_nodes
        slots_of.append(free[:count])
        free = free[count:]
    return parents_of, prefix_lens, slots_of


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 33))
def test_layouts_equal_the_loops(seed, bs, num_nodes):
    parents_of, prefix_lens, _ = random_batch(seed, bs, num_nodes)
    ancestors = ancestor_mask(torch.tensor(parents_of))
    assert qlen_mask(ancestors).tolist() == reference.qlen(parents_of)
    mask = full_mask(ancestors, torch.tensor(prefix_lens), sum(prefix_lens))
    assert mask.dtype == torch.bool
    assert mask.tolist() == reference.full(parents_of, prefix_lens)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_used_buffer_is_overwritten(dtype):
    parents_of, prefix_lens, _ = random_batch(3, 2, 5)
    ancestors = ancestor_mask(torch.tensor(parents_of))
    numel = full_mask_numel(2, 5, sum(prefix_lens))
    for before in (0, 1):
        buffer = torch.full((numel + 11,), before, dtype=dtype)
        fill_full_mask(ancestors, torch.tensor(prefix_lens, dtype=torch.int32), buffer)
        assert buffer[:numel].bool().tolist() == reference.full(parents_of, prefix_lens)
        assert buffer[numel:].tolist() == [before] * 11  # 8 MB of 400 at a context of 256 k


def read_flashinfer(arguments, request):
    """Slots that each query row of a request attends to, read as FlashInfer's plan reads them."""
    qo_indptr, kv_indptr, kv_indices, mask = arguments
    num_rows = [b - a for a, b in itertools.pairwise(qo_indptr)]
    num_keys = [b - a for a, b in itertools.pairwise(kv_indptr)]
    start = sum(q * k for q, k in list(zip(num_rows, num_keys))[:request])
    keys = kv_indices[kv_indptr[request] : kv_indptr[request + 1]]
    return [
        [slot for column, slot in enumerate(keys) if mask[start + row * len(keys) + column]]
        for row in range(num_rows[request])
    ]


def read_triton(arguments, request, tree_slots):
    """The same read as Triton's extend kernel does: all of the prefix, then masked tree keys."""
    _, kv_indptr, kv_indices, mask_indptr, mask = arguments
    prefix = kv_indices[kv_indptr[request] : kv_indptr[request + 1]]
    stride = len(prefix) + len(tree_slots)
    first = mask_indptr[request] + len(prefix)
    return [
        prefix + [s for c, s in enumerate(tree_slots) if mask[first + row * stride + c]]
        for row in range(len(tree_slots))
    ]


def test_both_backends_see_each_nodes_own_path():
    for seed in range(30):
        parents_of, prefix_lens, slots_of = random_batch(seed, 3, 1 + seed)
        ours = full_mask(
            ancestor_mask(torch.tensor(parents_of)), torch.tensor(prefix_lens), sum(prefix_lens)
        ).tolist()
        flashinfer = reference.flashinfer_arguments(parents_of, prefix_lens, slots_of)
        triton = reference.triton_arguments(parents_of, prefix_lens, slots_of)
        assert ours == flashinfer[-1] == triton[-1]
        for request, (parents, prefix_len, slots) in enumerate(
            zip(parents_of, prefix_lens, slots_of)
        ):
            expected = [sorted(s) for s in reference.visible_slots(parents, prefix_len, slots)]
            read = read_flashinfer((*flashinfer[:-1], ours), request)
            assert [sorted(s) for s in read] == expected
            read = read_triton((*triton[:-1], ours), request, slots[prefix_len:])
            assert [sorted(s) for s in read] == expected
