"""Triton kernel for the FULL mask layout; twin of `core.masks`, two launches instead of about 12.

QLEN needs no kernel: it is a view.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.speculative.glance.core.masks import full_mask_numel


@triton.jit
def _fill_full_mask_kernel(
    ancestors_ptr,  # [bs, num_nodes, num_nodes] bool
    prefix_lens_ptr,  # [bs] int
    out_ptr,  # bool or uint8, out
    num_nodes,
    NODES: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """One program a row of a request's mask: the tree's columns, the rest is True already."""
    request = tl.program_id(0)
    node = tl.program_id(1)
    before = tl.arange(0, REQUESTS)
    prefixes = tl.load(prefix_lens_ptr + before, mask=before < request, other=0).to(tl.int64)
    prefix_len = tl.load(prefix_lens_ptr + request).to(tl.int64)
    start = (tl.sum(prefixes, axis=0) + request * num_nodes) * num_nodes
    row = out_ptr + start + node * (prefix_len + num_nodes)

    columns = tl.arange(0, NODES)
    in_tree = columns < num_nodes
    ancestors = (request.to(tl.int64) * num_nodes + node) * num_nodes + columns
    seen = tl.load(ancestors_ptr + ancestors, mask=in_tree, other=0)
    tl.store(row + prefix_len + columns, seen.to(out_ptr.dtype.element_ty), mask=in_tree)


def fill_full_mask(ancestors: torch.Tensor, prefix_lens: torch.Tensor, out: torch.Tensor) -> None:
    """See `core.masks.fill_full_mask`."""
    bs, num_nodes, _ = ancestors.shape
    out.fill_(1)
    if ancestors.numel():
        _fill_full_mask_kernel[(bs, num_nodes)](
            ancestors.contiguous(),
            prefix_lens.contiguous(),
            out,
            num_nodes,
            NODES=triton.next_power_of_2(num_nodes),
            REQUESTS=triton.next_power_of_2(bs),
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
