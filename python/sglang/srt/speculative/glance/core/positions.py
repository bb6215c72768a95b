"""The only place where a rotary position is computed from a length.

A prefix of n committed tokens occupies positions 0..n-1, so the root, committed but not yet in
the cache, stands at position n.
"""

from __future__ import annotations

import torch


def tree_positions(prefix_lens: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
    """[bs*N] int64 from prefix_lens [bs] and depths [bs, N]: siblings share a position."""
    return (prefix_lens[:, None] + depths).flatten().to(torch.int64)


def block_positions(prefix_lens: torch.Tensor, block: int) -> torch.Tensor:
    """[bs*B] int64 from prefix_lens [bs]: the drafter's block, root first, on one axis.

    The drafter counts every committed token once, image tokens included: no M-RoPE delta.
    """
    offsets = torch.arange(block, device=prefix_lens.device)
    return (prefix_lens[:, None] + offsets).flatten().to(torch.int64)


def mrope_positions(positions: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
    """[3, bs*W] int64 from positions [bs*W] and each request's M-RoPE delta, deltas [bs]."""
    bs = deltas.numel()
    if deltas.dim() != 1 or positions.dim() != 1 or positions.shape[0] % max(bs, 1):
        raise ValueError(
            f"expected positions [bs*W] and deltas [bs], got {tuple(positions.shape)} and "
            f"{tuple(deltas.shape)}"
        )
    width = positions.shape[0] // max(bs, 1)
    shifted = (positions.view(bs, width) + deltas[:, None]).flatten().to(torch.int64)
    return shifted.expand(3, -1).contiguous()
