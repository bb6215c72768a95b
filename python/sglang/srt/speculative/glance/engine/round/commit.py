"""Commit: the accepted path's KV to the front of the window, and the head's K/V beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.speculative.glance.core.accept import Accepted
from sglang.srt.speculative.glance.core.positions import block_positions
from sglang.srt.speculative.spec_utils import move_accept_tokens_to_target_kvcache


class Committer:
    """``append``: the host's writer of the head's K/V, at slots given by the caller."""

    def __init__(self, append: Callable[..., None]) -> None:
        self.append = append

    def commit(
        self, batch: Any, accepted: Accepted, hidden: torch.Tensor, window: torch.Tensor
    ) -> torch.Tensor:
        """``hidden [bs * N, taps * H]``, ``window [bs, >= D]`` slots. Returns the accepted nodes'
        batch-wide rows (request * N + node) ``[bs, D] int64``, -1 padded."""
        index = accepted.accept_index
        bs, depth = index.shape
        first = torch.arange(bs, device=index.device)[:, None] * (len(hidden) // bs)
        rows = torch.where(index >= 0, index + first, index)
        move_accepted(batch, rows, accepted.accept_lens)
        positions = block_positions(batch.seq_lens, depth)
        self.write_head(hidden, rows, window[:, :depth], positions, accepted.accept_lens)
        return rows

    def write_head(
        self,
        hidden: torch.Tensor,
        rows: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        accept_lens: torch.Tensor,
    ) -> None:
        """The head's K/V of ``rows [bs, D]`` at ``slots [bs, D]``; ``positions [bs * D]``."""
        raise NotImplementedError


class RowCommitter(Committer):
    """For a CPU: the accepted rows alone, whose number the host reads."""

    def write_head(self, hidden, rows, slots, positions, accept_lens) -> None:
        kept = (rows >= 0).view(-1)
        self.append(
            target_hidden=hidden[rows.view(-1)[kept]],
            cache_loc=slots.reshape(-1)[kept],
            positions=positions[kept],
        )


class FixedShapeCommitter(Committer):
    """For a GPU: all D rows are computed, and those past a run's end are not written. No shape
    depends on the data, so nothing waits for the device."""

    def write_head(self, hidden, rows, slots, positions, accept_lens) -> None:
        self.append(
            target_hidden=hidden[rows.clamp(min=0).view(-1)],
            cache_loc=slots.reshape(-1),
            cache_loc_2d=slots,
            positions=positions,
            commit_lens=accept_lens,
        )


def move_accepted(batch: Any, accept_rows: torch.Tensor, accept_lens: torch.Tensor) -> None:
    """Move accepted nodes' target KV inside ``batch.out_cache_loc``'s windows. A node at depth d
    was rotated for position prefix + d, which is the slot it lands in."""
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
        attn = layer.self_attn.attn
        pool.set_kv_buffer(attn, KVWriteLoc(slots, None), k, v, attn.k_scale, attn.v_scale)
