"""Slow, plain-Python statements of what core/ must do, one request at a time."""

from __future__ import annotations

import heapq
import itertools
import math


def edges_of(topk_logprobs):
    """[B-1][K] exact integer scores of one request's [B-1, K] log-probabilities."""
    return [[exact_score(value) for value in row] for row in topk_logprobs.tolist()]


def exact_score(logprob):
    """Steps of 2**-28 nat, towards zero, of a log-probability cut to [-1024, 0]."""
    if math.isnan(logprob):
        return -1024 * 2**28
    return int(min(max(logprob, -1024.0), 0.0) * 2**28)


def all_prefixes(edges):
    """Every prefix as (score, ranks), the root's empty prefix included."""
    k = len(edges[0]) if edges else 0
    for depth in range(len(edges) + 1):
        for ranks in itertools.product(range(k), repeat=depth):
            yield sum(edges[offset][rank] for offset, rank in enumerate(ranks)), ranks


def exhaustive_tree(edges, budget):
    """The first `budget` prefixes in the stated order, by sorting all of them.

    Prefixes of equal score and depth compare by their parents' places, then by rank; comparing
    the ranks from the root down would be wrong, so parents are placed depth by depth.
    """
    score = {ranks: total for total, ranks in all_prefixes(edges)}
    place = {(): 0}
    by_depth = {}
    for ranks in score:
        by_depth.setdefault(len(ranks), []).append(ranks)
    for depth in range(1, len(edges) + 1):
        level = by_depth[depth]
        level.sort(key=lambda r: (-score[r], place[r[:-1]], r[-1]))
        place.update({ranks: i for i, ranks in enumerate(level)})
    # Among parents of one depth, the place in the level orders as the place in the tree does.
    order = sorted(score, key=lambda r: (-score[r], len(r), place[r]))
    return order[:budget]


def heap_tree(edges, budget):
    """The same tree by best-first search, for sizes that cannot be enumerated."""
    k = len(edges[0])
    kept = []
    heap = [(0, 0, -1, 0, ())]
    while len(kept) < budget:
        cost, depth, _, _, ranks = heapq.heappop(heap)
        kept.append(ranks)
        if depth < len(edges):
            for rank in range(k):
                child = cost - edges[depth][rank]
                heapq.heappush(heap, (child, depth + 1, len(kept) - 1, rank, ranks + (rank,)))
    return kept


def tree_rows(order, root_token, ids):
    """tokens, parents, depths of a list of prefixes, root first."""
    place = {ranks: i for i, ranks in enumerate(order)}
    tokens = [ids[len(r) - 1][r[-1]] if r else root_token for r in order]
    parents = [place[r[:-1]] if r else -1 for r in order]
    return tokens, parents, [len(r) for r in order]


def ancestors_or_self(parents, node):
    found = []
    while node != -1:
        found.append(node)
        node = parents[node]
    return found


def links(parents):
    """first child and next sibling of every node, -1 where none is."""
    first_child, next_sibling = [], []
    for node in range(len(parents)):
        children = [c for c, p in enumerate(parents) if p == node]
        younger = [c for c, p in enumerate(parents) if p == parents[node] and c > node]
        first_child.append(children[0] if children else -1)
        next_sibling.append(younger[0] if younger else -1)
    return first_child, next_sibling


def walk(tokens, parents, target_tokens, max_depth):
    """(path, committed tokens) of one request."""
    path = [0]
    while len(path) <= max_depth:
        here = path[-1]
        matches = [
            c for c, p in enumerate(parents) if p == here and tokens[c] == target_tokens[here]
        ]
        if not matches:
            break
        path.append(matches[0])
    return path, [target_tokens[node] for node in path]
