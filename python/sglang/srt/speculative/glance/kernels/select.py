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
    from sglang.srt.speculative.glance.kernels import cpu

    if device.type == "cuda":
        from sglang.srt.speculative.glance.kernels import accept, masks, tree
    else:
        from sglang.srt.speculative.glance.core import accept, masks, tree

        if cpu.available():
            accept = tree = cpu
    return Ops(
        tree.build_tree,
        tree.ancestor_mask,
        tree.tree_links,
        masks.fill_full_mask,
        masks.full_mask,
        accept.walk,
    )
