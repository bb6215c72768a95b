"""The candidate tree: which prefixes of a drafted block the target verifies.

The drafter gives, for each of the B-1 offsets after the root, K candidate tokens with their
log-probabilities. A prefix picks one candidate at each of its offsets and scores the sum of their
log-probabilities. The tree holds the N-1 best prefixes and the root, in this order:

1. score, highest first;
2. depth, shallowest first;
3. position of the parent in this same order, first parent first;
4. rank of the candidate at its offset, lowest first.

A child never scores above its parent and loses a tie with it, so parents come first, the tree is
closed under prefixes, and the tree of budget N is the first N nodes of any larger one.

Scores are summed as integers. A log-probability is cut to [-1024, 0] (NaN and -inf count as
-1024) and counted in steps of 2**-28 nat. The sums are then exact, so the order is the same on
every device and rank, whatever the order of additions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

LOGPROB_FLOOR = -1024.0
STEPS_PER_NAT = 1 << 28
# A key is score * INDEX_SPAN - index: the largest key has the best score, then the lowest index.
# 64 offsets * 1024 nats * 2**28 steps * 2**16 indices = 2**60 fits int64.
INDEX_SPAN = 1 << 16
MAX_OFFSETS = 64
# The kernel's keys hold depth, parent and rank instead; see `kernels.tree`. A shape has to fit
# both: every device builds the same trees, and what a round could not build is refused at start.
SEARCH_SPAN = 1 << 18


@dataclass(frozen=True)
class Tree:
    """N nodes a request, best first, so that a parent stands before its children.

    tokens  [bs, N] int64    node 0 is the root
    parents [bs, N] int64    index of the parent in the same row; -1 for the root
    depths  [bs, N] int64    0 for the root
    scores  [bs, N] float32  cumulative log-probability; 0 for the root
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor


def max_nodes(block: int, k: int) -> int:
    """Nodes of the full tree over a block of `block` tokens, root included."""
    return sum(k**depth for depth in range(block))


@cache
def check_shape(block: int, k: int, budget: int) -> None:
    """Raise ValueError unless every tree over `block` and `k` can have exactly `budget` nodes."""
    if not 1 <= block <= MAX_OFFSETS + 1:
        raise ValueError(
            f"block must lie in 1..{MAX_OFFSETS + 1}, got {block}; use a smaller block"
        )
    if k < 1:
        raise ValueError(f"candidates per offset must be at least 1, got {k}")
    if not 1 <= budget <= max_nodes(block, k):
        raise ValueError(
            f"budget must lie in 1..{max_nodes(block, k)} for a block of {block} tokens with {k} "
            f"candidate(s) per offset, got {budget}; lower the budget or raise block or candidates"
        )
    if _too_wide(block, k, budget):
        raise ValueError(
            f"budget {budget} with {k} candidates per offset and block {block} is more than a "
            f"search can number: block * budget * candidates, the last two rounded up to powers "
            f"of two, may be {SEARCH_SPAN}, and the candidates of a level {INDEX_SPAN}; lower the "
            "budget or the candidates"
        )


def _too_wide(block: int, k: int, budget: int) -> bool:
    if block * power_of_2(budget) * power_of_2(k) > SEARCH_SPAN:
        return True
    widths = level_widths(block, k, budget)
    return max(widths) * k > INDEX_SPAN or sum(widths) > INDEX_SPAN


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


@cache
def level_widths(block: int, k: int, budget: int) -> tuple[int, ...]:
    """How many nodes of each depth, best first, can be in a tree of `budget` nodes.

    The w-th best node of a depth is kept only with the w-1 before it and all their ancestors, and
    w nodes have at least ceil(w / k) parents. Keeping this many a level is therefore exact.
    """
    widths = [1]
    for depth in range(1, block):
        width = min(budget - 1, k**depth)
        while width and sum(-(-width // k**up) for up in range(depth)) > budget - 1:
            width -= 1
        if not width:
            break
        widths.append(width)
    return tuple(widths)


@dataclass(frozen=True)
class Layout:
    """What does not depend on the data of a tree, for one shape and device.

    A level holds the best nodes of one depth, as many as can be in the tree. The nodes of all
    levels are numbered 0..S-1, the root first, then depth by depth; such a number is an entry.
    widths          number of nodes of each level, the root's included
    pairs           [max(widths), K] int64  parent's place in its level * K + rank
    entries         [S] int64               0..S-1
    depths          [S] int64
    parent_entries  [S] int64               first entry of the level above
    columns         [S] int64               first column of the offset in [root, candidates]
    """

    widths: tuple[int, ...]
    pairs: torch.Tensor
    entries: torch.Tensor
    depths: torch.Tensor
    parent_entries: torch.Tensor
    columns: torch.Tensor


@cache
def layout(block: int, k: int, budget: int, device: torch.device) -> Layout:
    """Copies from the host on the first call for its arguments: call it before graph capture."""
    widths = level_widths(block, k, budget)
    rows, first, above = [], 0, 0
    for depth, width in enumerate(widths):
        rows += [(depth, above, 1 + (depth - 1) * k if depth else 0)] * width
        above, first = first, first + width
    with torch.inference_mode(False):
        depths, parent_entries, columns = torch.tensor(rows, dtype=torch.int64).T.contiguous()
        pairs = torch.arange(max(widths) * k).view(-1, k)
        tensors = pairs, torch.arange(len(rows)), depths, parent_entries, columns
        return Layout(widths, *(tensor.to(device) for tensor in tensors))


def build_tree(
    root_tokens: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_logprobs: torch.Tensor,
    budget: int,
) -> Tree:
    """The tree of exactly `budget` nodes over the offsets' marginals.

    root_tokens   [bs] int64
    topk_ids      [bs, B-1, K] int64, distinct within an offset
    topk_logprobs [bs, B-1, K] float32, in any order within an offset
    """
    check_inputs(root_tokens, topk_ids, topk_logprobs, budget)
    bs, num_offsets, k = topk_ids.shape
    plan = layout(num_offsets + 1, k, budget, topk_ids.device)
    scores, choices = _survivors(topk_logprobs, plan)
    # Keys are unique, and the root's, zero, is the largest.
    keys, entries = (scores - plan.entries).topk(budget, dim=1)

    choices = choices.gather(1, entries)
    place_of_entry = torch.empty_like(scores)
    place_of_entry.scatter_(1, entries, plan.entries[:budget].expand(bs, budget))
    parents = place_of_entry.gather(1, plan.parent_entries[entries] + choices // k)
    parents[:, 0] = -1

    candidates = torch.cat([root_tokens[:, None], topk_ids.flatten(1)], dim=1)
    tokens = candidates.gather(1, plan.columns[entries] + choices % k)
    nats = (keys + entries).double() / (INDEX_SPAN * STEPS_PER_NAT)
    return Tree(tokens, parents, plan.depths[entries], nats.float())


def check_inputs(
    root_tokens: torch.Tensor, topk_ids: torch.Tensor, topk_logprobs: torch.Tensor, budget: int
) -> None:
    """Raise unless the arguments of `build_tree` fit together."""
    if topk_ids.dim() != 3 or topk_logprobs.shape != topk_ids.shape:
        raise ValueError(
            f"expected topk_ids and topk_logprobs of one shape [bs, B-1, K], got "
            f"{tuple(topk_ids.shape)} and {tuple(topk_logprobs.shape)}"
        )
    if root_tokens.shape != topk_ids.shape[:1]:
        raise ValueError(
            f"expected root_tokens [{topk_ids.shape[0]}], got {tuple(root_tokens.shape)}"
        )
    dtypes = (root_tokens.dtype, topk_ids.dtype, topk_logprobs.dtype)
    if dtypes != (torch.int64, torch.int64, torch.float32):
        raise ValueError(f"expected dtypes int64, int64, float32, got {dtypes}; convert first")
    check_shape(topk_ids.shape[1] + 1, topk_ids.shape[2], budget)


def score_steps(topk_logprobs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities as counts of 2**-28 nat, int64, same shape."""
    logprobs = topk_logprobs.nan_to_num(nan=LOGPROB_FLOOR).clamp(LOGPROB_FLOOR, 0.0)
    return (logprobs * STEPS_PER_NAT).to(torch.int64)


def _survivors(topk_logprobs: torch.Tensor, plan: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """Every prefix that may be in the tree, by entry of :class:`Layout`.

    Returns scores [bs, S] int64, multiples of INDEX_SPAN, and choices [bs, S] int64, each node's
    place of the parent in its level * K + rank.
    """
    edges = (score_steps(topk_logprobs) * INDEX_SPAN).unsqueeze(2) - plan.pairs
    scores = edges.new_zeros((edges.shape[0], 1))
    all_scores, all_choices = [scores], [scores]
    levels = zip(edges.unbind(1), plan.widths, plan.widths[1:], strict=False)
    for edge, num_parents, width in levels:
        keys = scores.unsqueeze(2) + edge.narrow(1, 0, num_parents)
        top, choices = keys.flatten(1).topk(width, dim=1)
        scores = top + choices
        all_scores.append(scores)
        all_choices.append(choices)
    return torch.cat(all_scores, dim=1), torch.cat(all_choices, dim=1)


def ancestor_mask(parents: torch.Tensor, max_depth: int | None = None) -> torch.Tensor:
    """[bs, N, N] bool from parents [bs, N] int64: the column is the row's ancestor or itself.

    No node may be deeper than `max_depth` (default N-1): a smaller bound saves work.
    """
    bs, num_nodes = parents.shape
    deepest = num_nodes - 1 if max_depth is None else min(max_depth, num_nodes - 1)
    # jump[n] is the ancestor as many steps up as the path of n is long; the root leads to itself.
    jump = parents.clamp(min=0)
    path = torch.arange(num_nodes, device=parents.device).expand(bs, num_nodes)[:, :, None]
    while path.shape[2] <= deepest:
        upper = path.gather(1, jump[:, :, None].expand(path.shape))
        path = torch.cat([path, upper], dim=2)
        jump = jump.gather(1, jump)
    mask = torch.zeros((bs, num_nodes, num_nodes), dtype=torch.bool, device=parents.device)
    return mask.scatter_(2, path, True)


def tree_links(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """EAGLE's links from parents [bs, N] int64, each [bs, N] int64.

    retrieve_index: row of the node in the flattened batch; next_token: first child, -1 if none;
    next_sibling: next node with the same parent, -1 if none.
    """
    bs, num_nodes = parents.shape
    retrieve_index = torch.arange(bs * num_nodes, device=parents.device).view(bs, num_nodes)
    sorted_parents, nodes = parents.sort(dim=1, stable=True)
    # Siblings are neighbours now. Column 0 is the root, whose parent -1 no other node has.
    elder = sorted_parents[:, 1:] == sorted_parents[:, :-1]
    dump = num_nodes
    links = parents.new_full((2, bs, num_nodes + 1), -1)
    links[0].scatter_(1, sorted_parents[:, 1:].masked_fill(elder, dump), nodes[:, 1:])
    links[1].scatter_(1, nodes[:, :-1].masked_fill(~elder, dump), nodes[:, 1:])
    next_token, next_sibling = links[:, :, :num_nodes].contiguous()
    return retrieve_index, next_token, next_sibling
