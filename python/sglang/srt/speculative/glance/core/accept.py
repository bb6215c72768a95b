"""Which drafted tokens the target agrees with.

One target token is drawn for every node. From the root, the walk goes to the child that carries
the token drawn at the node, as long as there is one. The tokens drawn on the way are what plain
decoding would have drawn, for any sampler; the last of them is the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Accepted:
    """What a round commits.

    accept_index [bs, max_depth+1] int64  nodes on the path, root first; -1 past the end
    accept_lens  [bs] int64               num_correct_drafts + 1
    committed    [bs, max_depth+1] int64  tokens drawn at those nodes; -1 past the end
    bonus        [bs] int64               the last committed token
    """

    accept_index: torch.Tensor
    accept_lens: torch.Tensor
    committed: torch.Tensor
    bonus: torch.Tensor


def walk(
    tree_tokens: torch.Tensor,
    parents: torch.Tensor,
    target_tokens: torch.Tensor,
    max_depth: int,
) -> Accepted:
    """Follow the target's tokens down the tree for at most `max_depth` steps.

    tree_tokens, parents, target_tokens [bs, N] int64; a root's parent is -1. Where two children
    of a node carry the same token, the first is taken.
    """
    check_inputs(tree_tokens, parents, target_tokens)
    bs, num_nodes = parents.shape
    end, unused = num_nodes, num_nodes + 1
    drawn_at_parent = target_tokens.gather(1, parents.clamp(min=0))
    agrees = (tree_tokens == drawn_at_parent) & (parents >= 0)
    nodes = torch.arange(num_nodes, device=parents.device).expand(bs, num_nodes)
    # step[n]: the child to go to from n, or `end`, which leads to itself.
    step = torch.full((bs, num_nodes + 2), end, dtype=torch.int64, device=parents.device)
    step.scatter_reduce_(1, torch.where(agrees, parents, unused), nodes, "amin")

    path = [step.new_zeros((bs, 1))]
    for _ in range(max_depth):
        path.append(step.gather(1, path[-1]))
    accept_index = torch.cat(path, dim=1)

    past_end = accept_index == end
    committed = target_tokens.gather(1, accept_index.clamp(max=num_nodes - 1))
    accept_lens = max_depth + 1 - past_end.sum(1)
    bonus = committed.gather(1, accept_lens[:, None] - 1).squeeze(1)
    return Accepted(
        accept_index.masked_fill(past_end, -1),
        accept_lens,
        committed.masked_fill(past_end, -1),
        bonus,
    )


def check_inputs(
    tree_tokens: torch.Tensor, parents: torch.Tensor, target_tokens: torch.Tensor
) -> None:
    """Raise unless the arguments of `walk` fit together."""
    if not tree_tokens.shape == parents.shape == target_tokens.shape or parents.dim() != 2:
        raise ValueError(
            f"expected tree_tokens, parents and target_tokens of one shape [bs, N], got "
            f"{tuple(tree_tokens.shape)}, {tuple(parents.shape)}, {tuple(target_tokens.shape)}"
        )


def shorten(accepted: Accepted, limits: torch.Tensor) -> Accepted:
    """Cut each request's path to at most `limits [bs] int64` drafted tokens.

    The token drawn at the new last node becomes the bonus: plain decoding would have drawn it
    there too, so a cut never changes the output, only how many rounds it takes.
    """
    accept_lens = torch.minimum(accepted.accept_lens, limits + 1)
    steps = torch.arange(accepted.committed.shape[1], device=limits.device)
    cut = steps >= accept_lens[:, None]
    return Accepted(
        accepted.accept_index.masked_fill(cut, -1),
        accept_lens,
        accepted.committed.masked_fill(cut, -1),
        accepted.committed.gather(1, accept_lens[:, None] - 1).squeeze(1),
    )
