"""Writes to the KV cache, and copies between its slots."""

import ctypes

from torch import Tensor

__all__ = ["copy_all_layer_kv_cache_cpu", "store_cache_cpu"]


def store_cache_cpu(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, row_dim: int
) -> None:
    """Scatter the rows of k and v [T, ...] to the slots `indices` [T] of the caches."""
    rows = indices.numel()
    k_cache.view(-1, row_dim)[indices] = k.reshape(rows, row_dim)
    v_cache.view(-1, row_dim)[indices] = v.reshape(rows, row_dim)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """In every buffer copy slot src_loc[i] to slot tgt_loc[i].

    data_ptrs holds the buffers' addresses, strides their bytes per slot. The op reads all
    sources of a buffer before it writes a target: the two sets may overlap.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    if len(sources) != len(targets):
        raise ValueError(f"Expected as many targets as sources, got {len(targets)}, {len(sources)}")
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + slot * stride, stride) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + slot * stride, row, stride)
