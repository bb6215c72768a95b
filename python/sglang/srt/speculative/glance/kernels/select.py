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
    """Triton kernels on a CUDA device, plain torch elsewhere (where Triton may be missing)."""
    if device.type == "cuda":
        from sglang.srt.speculative.glance.kernels import accept, masks, tree
    else:
        from sglang.srt.speculative.glance.core import accept, masks, tree
    return Ops(
        tree.build_tree,
        tree.ancestor_mask,
        tree.tree_links,
        masks.fill_full_mask,
        masks.full_mask,
        accept.walk,
    )
