"""Triton kernel for the FULL mask layout; twin of `core.masks`, one launch instead of about 15.

QLEN needs no kernel: it is a view.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.speculative.glance.core.masks import full_mask_numel

# Requests whose lengths are summed at a time, and prefix columns written at a time.
BLOCK = 1024
# Programs that share the prefix columns of a row, which may be many thousands.
SHARES = 8


@triton.jit
def _fill_full_mask_kernel(
    ancestors_ptr,  # [bs, num_nodes, num_nodes] bool
    prefix_lens_ptr,  # [bs] int
    out_ptr,  # bool or uint8, out
    num_nodes,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARES: tl.constexpr,
):
    """One program a row of a request's mask and share of its prefix. No constant depends on the
    batch: another batch size is another grid, not another kernel."""
    request = tl.program_id(0)
    node = tl.program_id(1)
    share = tl.program_id(2)
    places = tl.arange(0, BLOCK)
    before = tl.full((), 0, tl.int64)
    for first in range(0, request, BLOCK):
        others = first + places
        lens = tl.load(prefix_lens_ptr + others, mask=others < request, other=0)
        before += tl.sum(lens.to(tl.int64), axis=0)
    prefix_len = tl.load(prefix_lens_ptr + request).to(tl.int64)
    start = (before + request * num_nodes) * num_nodes
    row = out_ptr + start + node * (prefix_len + num_nodes)

    seen = tl.full((BLOCK,), 1, out_ptr.dtype.element_ty)
    for first in range(share * BLOCK, prefix_len, SHARES * BLOCK):
        columns = first + places
        tl.store(row + columns, seen, mask=columns < prefix_len)

    columns = tl.arange(0, NODES)
    in_tree = (columns < num_nodes) & (share == 0)
    ancestors = (request.to(tl.int64) * num_nodes + node) * num_nodes + columns
    seen = tl.load(ancestors_ptr + ancestors, mask=in_tree, other=0)
    tl.store(row + prefix_len + columns, seen.to(out_ptr.dtype.element_ty), mask=in_tree)


def fill_full_mask(ancestors: torch.Tensor, prefix_lens: torch.Tensor, out: torch.Tensor) -> None:
    """See `core.masks.fill_full_mask`."""
    bs, num_nodes, _ = ancestors.shape
    if ancestors.numel():
        _fill_full_mask_kernel[(bs, num_nodes, SHARES)](
            ancestors.contiguous(),
            prefix_lens.contiguous(),
            out,
            num_nodes,
            NODES=triton.next_power_of_2(num_nodes),
            BLOCK=BLOCK,
            SHARES=SHARES,
        )


def full_mask(
    ancestors: torch.Tensor, prefix_lens: torch.Tensor, prefix_lens_sum: int
) -> torch.Tensor:
    """See `core.masks.full_mask`."""
    bs, num_nodes, _ = ancestors.shape
    numel = full_mask_numel(bs, num_nodes, prefix_lens_sum)
    out = torch.empty(numel, dtype=torch.bool, device=ancestors.device)
    fill_full_mask(ancestors, prefix_lens, out)
    return out
