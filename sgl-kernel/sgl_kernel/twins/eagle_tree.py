"""SGLang's candidate trees: build links from a selection or from a mask, and the greedy walk.

B requests, N nodes in each tree; node 0 is the root. A link is a node's number in its tree, or -1.
"""

import torch
from torch import Tensor

__all__ = [
    "build_tree_kernel_efficient_cpu",
    "reconstruct_indices_from_tree_mask",
    "verify_tree_greedy_cpu",
]

QUERY_BY_QUERY_MASK = 1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask bool [B * N * N], positions [B * N] and the three links [B, N] of every tree.

    selected_index [B, N - 1] holds the selected entries' indices among all drafted entries, in
    ascending order. The parent of entry s is the entry parent_list[b, s // topk]; column 0 stands
    for the root. A child drafted with probability 1 has its parent's score, and the selection may
    keep the child without the parent. No link leads to such a node.
    """
    if tree_mask_mode != QUERY_BY_QUERY_MASK:
        raise NotImplementedError(
            f"Expected tree_mask_mode {QUERY_BY_QUERY_MASK} (N x N), got {int(tree_mask_mode)}"
        )
    num_trees = seq_lens.numel()
    masks = tree_mask.flatten()[: num_trees * draft_token_num**2]  # the buffer may be larger
    masks = masks.view(num_trees, draft_token_num, draft_token_num)
    for b in range(num_trees):
        parents = _parents(parent_list[b].tolist(), selected_index[b].tolist(), topk)
        _fill_links(parents, b, retrieve_index, retrieve_next_token, retrieve_next_sibling)
        mask = torch.eye(draft_token_num, dtype=torch.bool)
        for node, parent in enumerate(parents[1:], start=1):
            if parent >= 0:
                mask[node] |= mask[parent]
        masks[b] = mask
        positions.view(num_trees, draft_token_num)[b] = seq_lens[b] + mask.sum(1) - 1


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk every tree from its root to the child that the target predicts, as long as one exists.

    Writes the visited nodes' numbers in the batch to accept_index [B, depth + 1] (filled with -1 by
    the caller), the target's token at each visited node to predicts [B * N], and the number of
    visited nodes without the root to accept_token_num [B].
    """
    target_tokens = target_predict.flatten().tolist()
    for b in range(candidates.size(0)):
        tokens, numbers = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        walk = [0]
        while len(walk) < accept_index.size(1):
            node = child[walk[-1]]
            while node != -1 and tokens[node] != target_tokens[numbers[walk[-1]]]:
                node = sibling[node]
            if node == -1:
                break
            walk.append(node)
        for step, node in enumerate(walk):
            accept_index[b, step] = numbers[node]
            predicts[numbers[node]] = target_tokens[numbers[node]]
        accept_token_num[b] = len(walk) - 1


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links from the mask [B * N * N]; a node's parent is its last ancestor."""
    shape = (batch_size, draft_token_num)
    ancestors = tree_mask.view(*shape, draft_token_num).tril(-1)
    positions.view(shape).copy_(ancestors.sum(-1) + seq_lens.view(-1, 1))
    number = torch.arange(draft_token_num)
    parents = torch.where(ancestors, number, -1).amax(-1)
    links = [x.view(shape) for x in (retrieve_index, retrieve_next_token, retrieve_next_sibling)]
    for b in range(batch_size):
        _fill_links(parents[b].tolist(), b, *links)


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Each node's parent; -1 for the root and for a node whose parent was not selected."""
    node_of = {index: node for node, index in enumerate(selected, start=1)}
    parents = [-1]
    for index in selected:
        group = index // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group], -1))
    return parents


def _fill_links(
    parents: list[int], b: int, numbers: Tensor, child: Tensor, sibling: Tensor
) -> None:
    """Link a node's children in ascending order; a node without a parent gets no sibling."""
    num_nodes = len(parents)
    first, following, last = ([-1] * num_nodes for _ in range(3))
    for node, parent in enumerate(parents):
        if parent == -1:
            continue
        if first[parent] == -1:
            first[parent] = node
        else:
            following[last[parent]] = node
        last[parent] = node
    numbers[b] = torch.arange(b * num_nodes, (b + 1) * num_nodes)
    child[b] = torch.tensor(first)
    sibling[b] = torch.tensor(following)
