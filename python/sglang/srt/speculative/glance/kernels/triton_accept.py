"""Triton kernel for the walk; twin of `core.accept.walk`, one launch instead of about 30."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.speculative.glance.core.accept import Accepted, check_inputs


@triton.jit
def _walk_kernel(
    tokens_ptr,  # [bs, num_nodes] int64
    parents_ptr,  # [bs, num_nodes] int64
    drawn_ptr,  # [bs, num_nodes] int64
    accept_index_ptr,  # [bs, max_depth+1] int64, out
    accept_lens_ptr,  # [bs] int64, out
    committed_ptr,  # [bs, max_depth+1] int64, out
    bonus_ptr,  # [bs] int64, out
    num_nodes,
    max_depth,
    NODES: tl.constexpr,
):
    """One program a request."""
    request = tl.program_id(0).to(tl.int64)
    first = request * num_nodes
    out = request * (max_depth + 1)
    nodes = tl.arange(0, NODES)
    tokens = tl.load(tokens_ptr + first + nodes, mask=nodes < num_nodes, other=0)
    parents = tl.load(parents_ptr + first + nodes, mask=nodes < num_nodes, other=-1)

    node = tl.full((), 0, tl.int64)
    drawn = tl.load(drawn_ptr + first)
    bonus = drawn
    accept_len = tl.full((), 1, tl.int64)
    tl.store(accept_index_ptr + out, node)
    tl.store(committed_ptr + out, drawn)
    for step in range(1, max_depth + 1):
        # Past the end node is -2, which is nobody's parent.
        agrees = (parents == node) & (tokens == drawn)
        child = tl.min(tl.where(agrees, nodes, NODES), axis=0).to(tl.int64)
        found = child < NODES
        node = tl.where(found, child, -2)
        drawn = tl.load(drawn_ptr + first + child, mask=found, other=-1)
        bonus = tl.where(found, drawn, bonus)
        accept_len += found.to(tl.int64)
        tl.store(accept_index_ptr + out + step, tl.where(found, child, -1))
        tl.store(committed_ptr + out + step, drawn)
    tl.store(accept_lens_ptr + request, accept_len)
    tl.store(bonus_ptr + request, bonus)


def walk(
    tree_tokens: torch.Tensor,
    parents: torch.Tensor,
    target_tokens: torch.Tensor,
    max_depth: int,
) -> Accepted:
    """See `core.accept.walk`."""
    check_inputs(tree_tokens, parents, target_tokens)
    bs, num_nodes = parents.shape
    accept_index, committed = (
        torch.empty((bs, max_depth + 1), dtype=torch.int64, device=parents.device) for _ in range(2)
    )
    accept_lens, bonus = (
        torch.empty((bs,), dtype=torch.int64, device=parents.device) for _ in range(2)
    )
    if bs:
        _walk_kernel[(bs,)](
            tree_tokens.contiguous(),
            parents.contiguous(),
            target_tokens.contiguous(),
            accept_index,
            accept_lens,
            committed,
            bonus,
            num_nodes,
            max_depth,
            NODES=triton.next_power_of_2(num_nodes),
            num_warps=1,
        )
    return Accepted(accept_index, accept_lens, committed, bonus)
