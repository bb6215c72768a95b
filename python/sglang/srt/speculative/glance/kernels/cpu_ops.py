"""C++ ops for a CPU, from the package `sgl_kernel`; twins of `core.tree` and `core.accept`, same
arguments, same integers. In plain torch a tree of block 16 is about 130 tiny ops a round.
"""

from __future__ import annotations

import torch
from sglang.srt.speculative.glance.core import accept
from sglang.srt.speculative.glance.core import tree as twins
from sglang.srt.speculative.glance.core.accept import Accepted
from sglang.srt.speculative.glance.core.tree import STEPS_PER_NAT, Tree, score_steps


def available() -> bool:
    """Whether the C++ ops are loaded (not with the torch twins, nor beside a GPU's sgl_kernel)."""
    return hasattr(torch.ops.sgl_kernel, "glance_tree_cpu")


def build_tree(
    root_tokens: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_logprobs: torch.Tensor,
    budget: int,
) -> Tree:
    """See `core.tree.build_tree`."""
    twins.check_inputs(root_tokens, topk_ids, topk_logprobs, budget)
    steps = score_steps(topk_logprobs)
    tokens, parents, depths, scores = torch.ops.sgl_kernel.glance_tree_cpu(
        root_tokens.contiguous(), topk_ids.contiguous(), steps.contiguous(), budget
    )
    return Tree(tokens, parents, depths, (scores.double() / STEPS_PER_NAT).float())


def ancestor_mask(parents: torch.Tensor, max_depth: int | None = None) -> torch.Tensor:
    """See `core.tree.ancestor_mask`; a bound on the depth saves nothing here."""
    return torch.ops.sgl_kernel.glance_tree_mask_cpu(parents.contiguous())


def tree_links(parents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `core.tree.tree_links`."""
    return torch.ops.sgl_kernel.glance_tree_links_cpu(parents.contiguous())


def walk(
    tree_tokens: torch.Tensor,
    parents: torch.Tensor,
    target_tokens: torch.Tensor,
    max_depth: int,
) -> Accepted:
    """See `core.accept.walk`."""
    accept.check_inputs(tree_tokens, parents, target_tokens)
    return Accepted(
        *torch.ops.sgl_kernel.glance_tree_walk_cpu(
            tree_tokens.contiguous(), parents.contiguous(), target_tokens.contiguous(), max_depth
        )
    )
