"""Triton kernels for the candidate tree; twins of `core.tree`, same arguments, same integers.

In plain torch a tree of block 16 is about 100 launches (five a level) and its links and mask some
30 more; here it is one launch each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.speculative.glance.core.tree import (
    LOGPROB_FLOOR,
    SEARCH_SPAN,
    STEPS_PER_NAT,
    Tree,
    check_inputs,
    power_of_2,
)

_FLOOR = tl.constexpr(LOGPROB_FLOOR)
_STEPS_PER_NAT = tl.constexpr(float(STEPS_PER_NAT))
_INDEX_SPAN = tl.constexpr(SEARCH_SPAN)
# Below every key: 64 offsets * 1024 nats * 2**28 steps * 2**18 indices are 2**62 exactly, and an
# index comes on top.
_TAKEN = tl.constexpr(-(1 << 63))


@triton.jit
def _build_tree_kernel(
    root_ptr,  # [bs] int64
    ids_ptr,  # [bs, num_offsets, k] int64
    logprobs_ptr,  # [bs, num_offsets, k] float32
    tokens_ptr,  # [bs, budget] int64, out
    parents_ptr,  # [bs, budget] int64, out
    depths_ptr,  # [bs, budget] int64, out
    scores_ptr,  # [bs, budget] float32, out
    num_offsets,
    k,
    budget,
    NODES: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Best-first search, one program a request.

    keys[p, r] stands for rank r's child of node p while that child is in the frontier. A key is
    score * SEARCH_SPAN - (depth, p, r): the largest is the next node of the tree's order, and
    everything about the node is read back from it.
    """
    request = tl.program_id(0).to(tl.int64)
    candidates = request * num_offsets * k
    out = request * budget
    places = tl.arange(0, NODES)[:, None]
    ranks = tl.arange(0, RANKS)

    tl.store(tokens_ptr + out, tl.load(root_ptr + request))
    tl.store(parents_ptr + out, tl.full((), -1, tl.int64))
    tl.store(depths_ptr + out, tl.full((), 0, tl.int64))
    tl.store(scores_ptr + out, tl.full((), 0.0, tl.float32))

    keys = tl.full((NODES, RANKS), _TAKEN, tl.int64)
    score = tl.full((), 0, tl.int64)
    depth = tl.full((), 0, tl.int64)
    for place in range(1, budget):
        # The children of the node before enter the frontier.
        is_child = (ranks < k) & (depth < num_offsets)
        logprobs = tl.load(
            logprobs_ptr + candidates + depth * k + ranks, mask=is_child, other=_FLOOR
        )
        # The comparison is False for NaN.
        logprobs = tl.minimum(tl.where(logprobs >= _FLOOR, logprobs, _FLOOR), 0.0)
        child_scores = score + (logprobs * _STEPS_PER_NAT).to(tl.int64) * _INDEX_SPAN
        child_indices = ((depth + 1) * NODES + place - 1) * RANKS + ranks
        child_keys = tl.where(is_child, child_scores - child_indices, _TAKEN)
        keys = tl.where(places == place - 1, child_keys[None, :], keys)

        best = tl.max(tl.max(keys, axis=1), axis=0)
        keys = tl.where(keys == best, _TAKEN, keys)
        index = -best & (_INDEX_SPAN - 1)
        score = best + index
        depth = index // (NODES * RANKS)
        token = tl.load(ids_ptr + candidates + (depth - 1) * k + index % RANKS)
        nats = (score // _INDEX_SPAN).to(tl.float64) / _STEPS_PER_NAT
        tl.store(tokens_ptr + out + place, token)
        tl.store(parents_ptr + out + place, index // RANKS % NODES)
        tl.store(depths_ptr + out + place, depth)
        tl.store(scores_ptr + out + place, nats.to(tl.float32))


@triton.jit
def _tree_links_kernel(
    parents_ptr,  # [bs, num_nodes] int64
    index_ptr,  # [bs, num_nodes] int64, out
    child_ptr,  # [bs, num_nodes] int64, out
    sibling_ptr,  # [bs, num_nodes] int64, out
    num_nodes,
    NODES: tl.constexpr,
):
    """One program a node."""
    row = tl.program_id(0).to(tl.int64)
    node = row % num_nodes
    others = tl.arange(0, NODES)
    parents = tl.load(parents_ptr + row - node + others, mask=others < num_nodes, other=-2)
    parent = tl.load(parents_ptr + row)
    child = tl.min(tl.where(parents == node, others, NODES), axis=0)
    is_sibling = (parents == parent) & (others > node)
    sibling = tl.min(tl.where(is_sibling, others, NODES), axis=0)
    tl.store(index_ptr + row, row)
    tl.store(child_ptr + row, tl.where(child == NODES, -1, child).to(tl.int64))
    tl.store(sibling_ptr + row, tl.where(sibling == NODES, -1, sibling).to(tl.int64))


@triton.jit
def _ancestor_mask_kernel(
    parents_ptr,  # [bs, num_nodes] int64
    mask_ptr,  # [bs, num_nodes, num_nodes] bool, out
    num_nodes,
    max_depth,
    NODES: tl.constexpr,
):
    """One program a node: mark it and everything above it."""
    row = tl.program_id(0).to(tl.int64)
    first = row // num_nodes * num_nodes
    node = row % num_nodes
    columns = tl.arange(0, NODES)
    seen = columns == node
    for _ in range(max_depth):
        node = tl.load(parents_ptr + first + node, mask=node >= 0, other=-1)
        seen = seen | (columns == node)
    tl.store(mask_ptr + row * num_nodes + columns, seen, mask=columns < num_nodes)


def build_tree(
    root_tokens: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_logprobs: torch.Tensor,
    budget: int,
) -> Tree:
    """See `core.tree.build_tree`."""
    check_inputs(root_tokens, topk_ids, topk_logprobs, budget)
    bs, num_offsets, k = topk_ids.shape
    nodes, ranks = power_of_2(budget), power_of_2(k)
    shape, device = (bs, budget), root_tokens.device
    tokens, parents, depths = (
        torch.empty(shape, dtype=torch.int64, device=device) for _ in range(3)
    )
    scores = torch.empty(shape, dtype=torch.float32, device=device)
    if bs:
        _build_tree_kernel[(bs,)](
            root_tokens.contiguous(),
            topk_ids.contiguous(),
            topk_logprobs.contiguous(),
            tokens,
            parents,
            depths,
            scores,
            num_offsets,
            k,
            budget,
            NODES=nodes,
            RANKS=ranks,
            num_warps=1 if nodes * ranks <= 512 else 4,
        )
    return Tree(tokens, parents, depths, scores)


def tree_links(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `core.tree.tree_links`."""
    parents = parents.contiguous()
    num_nodes = parents.shape[1]
    index, child, sibling = (torch.empty_like(parents) for _ in range(3))
    if parents.numel():
        _tree_links_kernel[(parents.numel(),)](
            parents, index, child, sibling, num_nodes, NODES=triton.next_power_of_2(num_nodes)
        )
    return index, child, sibling


def ancestor_mask(parents: torch.Tensor, max_depth: int | None = None) -> torch.Tensor:
    """See `core.tree.ancestor_mask`."""
    parents = parents.contiguous()
    bs, num_nodes = parents.shape
    deepest = num_nodes - 1 if max_depth is None else max_depth
    mask = torch.empty((bs, num_nodes, num_nodes), dtype=torch.bool, device=parents.device)
    if parents.numel():
        _ancestor_mask_kernel[(parents.numel(),)](
            parents, mask, num_nodes, deepest, NODES=triton.next_power_of_2(num_nodes)
        )
    return mask
