"""Candidate trees: links from the draft's selection, the greedy walk, links from a mask.

B requests, N nodes a tree; node 0 is the root. Links hold a node number within its tree or -1.
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

    selected_index [B, N - 1] holds, ascending, where the chosen nodes lie among all that were
    drafted; entry s has the parent parent_list[b, s // topk], which is such an index again, the
    first one standing for the root. Where a draft is certain, a child scores as high as its parent
    and may be selected without it: nothing leads to such a node.
    """
    if tree_mask_mode != QUERY_BY_QUERY_MASK:
        raise NotImplementedError(
            f"Expected tree_mask_mode {QUERY_BY_QUERY_MASK} (N x N), got {int(tree_mask_mode)}"
        )
    num_trees = seq_lens.numel()
    masks = tree_mask.flatten()[: num_trees * draft_token_num**2]  # the buffer may be longer
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
    """Walk every tree from its root to the child that the target predicts, while there is one.

    Writes the global numbers of the visited nodes to accept_index [B, depth + 1] (-1 before), the
    target's token of each of them to predicts [B * N], and their count without the root to
    accept_token_num [B].
    """
    wanted = target_predict.flatten().tolist()
    for b in range(candidates.size(0)):
        tokens, numbers = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        walk = [0]
        while len(walk) < accept_index.size(1):
            node = child[walk[-1]]
            while node != -1 and tokens[node] != wanted[numbers[walk[-1]]]:
                node = sibling[node]
            if node == -1:
                break
            walk.append(node)
        for step, node in enumerate(walk):
            accept_index[b, step] = numbers[node]
            predicts[numbers[node]] = wanted[numbers[node]]
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
    """Positions and links from the mask [B * N * N]: a node's parent is its last ancestor."""
    shape = (batch_size, draft_token_num)
    ancestors = tree_mask.view(*shape, draft_token_num).tril(-1)
    positions.view(shape).copy_(ancestors.sum(-1) + seq_lens.view(-1, 1))
    number = torch.arange(draft_token_num)
    parents = torch.where(ancestors, number, -1).amax(-1)
    links = [x.view(shape) for x in (retrieve_index, retrieve_next_token, retrieve_next_sibling)]
    for b in range(batch_size):
        _fill_links(parents[b].tolist(), b, *links)


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """The parent's node number of every node; -1 for the root, and where it was not selected."""
    node_of = {index: node for node, index in enumerate(selected, start=1)}
    parents = [-1]
    for index in selected:
        group = index // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group], -1))
    return parents


def _fill_links(
    parents: list[int], b: int, numbers: Tensor, child: Tensor, sibling: Tensor
) -> None:
    """Children of a node hang in ascending order; nodes without a parent get no sibling."""
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
