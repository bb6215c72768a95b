"""Commit: the accepted path's KV to the front of the window, and the head's K/V beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.speculative.spec_utils import move_accept_tokens_to_target_kvcache


def move_accepted(batch: Any, accept_rows: torch.Tensor, accept_lens: torch.Tensor) -> None:
    """Move accepted nodes' target KV inside ``batch.out_cache_loc``'s windows.

    ``accept_rows [bs, D] int64``: batch-wide node rows (request * N + node), -1 padded. A node at
    depth d was rotated for position prefix + d, which is the slot it lands in.
    """
    move_accept_tokens_to_target_kvcache(
        batch, accept_rows, accept_lens - 1, batch.token_to_kv_pool_allocator
    )


def layerwise_kv(
    draft_model: Any, context: torch.Tensor, positions: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``context [n, H]`` (the head's projection of the tapped states), ``positions [n] int64``
    (1-D token indices) -> each head layer's K and V ``[n, heads, D]``.

    A fused QKV projection is called whole: its weight may be packed or quantised, which no row
    slice respects.
    """
    for layer in draft_model.layers:
        attn = layer.self_attn
        qkv, _ = attn.qkv_proj(context)
        _, k, v = qkv.split([attn.q_size, attn.kv_size, attn.kv_size], dim=-1)
        k = attn.apply_k_rope(positions, attn.apply_k_norm(k))
        if attn.v_scale is not None:
            v = v * attn.v_scale
        shape = (-1, attn.num_kv_heads, attn.head_dim)
        yield k.view(shape), v.reshape(shape)


def write_head_kv(
    draft_model: Any,
    pool: Any,
    layers_kv: Iterable[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
) -> None:
    """Write every head layer's K and V ``[n, heads, D]`` at ``slots [n] int64``."""
    for layer, (k, v) in zip(draft_model.layers, layers_kv, strict=True):
        pool.set_kv_buffer(layer.self_attn.attn, KVWriteLoc(slots, None), k, v)
