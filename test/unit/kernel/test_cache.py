"""Writes to and copies within the KV cache: C++ against the twins."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import twins

ops = torch.ops.sgl_kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_store_equals_its_twin(rows, index_dtype, dtype):
    qkv = torch.randn(rows, 8, 64).to(dtype)
    k, v = qkv[:, 4:6], qkv[:, 6:].flatten(1)  # k: heads in a slice of qkv; v: flat rows
    caches = torch.randn(2, 20, 2, 64).to(dtype)
    expected = caches.clone()
    slots = torch.randperm(20)[:rows].to(index_dtype)
    ops.store_cache_cpu(k, v, caches[0], caches[1], slots, 128)
    twins.store_cache_cpu(k, v, expected[0], expected[1], slots, 128)
    assert torch.equal(caches, expected)


def test_store_errors_name_the_wrong_value():
    k = torch.randn(3, 2, 64)
    caches = torch.zeros(2, 5, 2, 64)
    slots = torch.tensor([0, 1, 5])
    with pytest.raises(RuntimeError, match="slots below 5, got 5"):
        ops.store_cache_cpu(k, k, caches[0], caches[1], slots, 128)
    with pytest.raises(RuntimeError, match="expected 2 rows, got 3"):
        ops.store_cache_cpu(k, k, caches[0], caches[1], slots[:2], 128)
    with pytest.raises(RuntimeError, match="64 elements a token"):
        ops.store_cache_cpu(k, k, caches[0], caches[1], slots, 64)
    with pytest.raises(RuntimeError, match=r"dtype of cache \(Float\), got BFloat16"):
        ops.store_cache_cpu(k.bfloat16(), k, caches[0], caches[1], slots % 5, 128)


def addresses(buffers: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    pointers = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
    return pointers, torch.tensor([b[0].numel() * b.element_size() for b in buffers])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(1, 4), st.integers(0, 2**30))
def test_copies_read_every_source_before_they_write(count, num_buffers, seed):
    """Targets overlap sources, and every buffer has another row width."""
    torch.manual_seed(seed)
    buffers = [torch.randn(12, 3 + b) for b in range(num_buffers)]
    expected = [b.clone() for b in buffers]
    targets, sources = torch.randperm(12)[:count], torch.randint(0, 12, (count,))
    for fn in (ops.copy_all_layer_kv_cache_cpu, twins.copy_all_layer_kv_cache_cpu):
        moved = [b.clone() for b in buffers]
        fn(*addresses(moved), targets, sources)
        for got, before in zip(moved, expected, strict=True):
            after = before.clone()
            after[targets] = before[sources]
            assert torch.equal(got, after)


def test_copies_refuse_wrong_addresses_and_slots():
    slots = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="expected contiguous uint64 addresses, got Long"):
        ops.copy_all_layer_kv_cache_cpu(slots, slots, slots, slots)
    buffers = [torch.zeros(4, 4)]
    with pytest.raises(RuntimeError, match="expected slots >= 0, got a move from 0 to -1"):
        ops.copy_all_layer_kv_cache_cpu(*addresses(buffers), slots - 1, slots)
