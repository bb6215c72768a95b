"""Which implementation of the method's device work runs where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ops:
    """Functions of `core.tree`, `core.masks` and `core.accept`, or their kernels: same arguments,
    same results."""

    build_tree: Callable
    ancestor_mask: Callable
    tree_links: Callable
    fill_full_mask: Callable
    full_mask: Callable
    walk: Callable


def ops_for(device: torch.device) -> Ops:
    """Triton kernels on a CUDA device; on a CPU the C++ ops of `sgl_kernel`, else plain torch."""

    if device.type == "cuda":
        from sglang.srt.speculative.glance.kernels import triton_accept as accept
        from sglang.srt.speculative.glance.kernels import triton_masks as masks
        from sglang.srt.speculative.glance.kernels import triton_tree as tree
    else:
        from sglang.srt.speculative.glance.core import accept, masks, tree
        from sglang.srt.speculative.glance.kernels import cpu_ops

        if cpu_ops.available():
            accept = tree = cpu_ops
    return Ops(
        tree.build_tree,
        tree.ancestor_mask,
        tree.tree_links,
        masks.fill_full_mask,
        masks.full_mask,
        accept.walk,
    )


def warm(ops: Ops, block: int, topk: int, budget: int, device: torch.device) -> None:
    """Run every function once for a round's shape, so that no kernel is compiled and no constant
    copied to the device while requests wait. Other batch sizes need no other kernels."""
    roots = torch.zeros(1, dtype=torch.int64, device=device)
    ids = torch.arange(topk, device=device).repeat(1, block - 1, 1)
    tree = ops.build_tree(roots, ids, -ids.float(), budget)
    ancestors = ops.ancestor_mask(tree.parents, min(block, budget) - 1)
    ops.tree_links(tree.parents)
    ops.full_mask(ancestors, roots, 0)
    ops.walk(tree.tokens, tree.parents, tree.tokens, min(block, budget) - 1)
