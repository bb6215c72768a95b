"""An SGLang plugin with a wrong rule: the likeliest draft is taken whatever the target draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _first_child(original: Callable, output: Any, batch: Any, tree: Any, *args: Any) -> Any:
    """Nodes are ordered by likelihood: a node's first child is its likeliest."""
    drawn = original(output, batch, tree, *args)
    num = tree.parents.shape[1]
    nodes = torch.arange(num).expand_as(tree.parents)
    child = torch.full((len(nodes), num + 1), num)
    child.scatter_reduce_(1, torch.where(tree.parents < 0, num, tree.parents), nodes, "amin")
    child = child[:, :num]
    return torch.where(child < num, tree.tokens.gather(1, child.clamp(max=num - 1)), drawn)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.speculative.glance.engine.round.verify.draw"
    HookRegistry.register(target, _first_child, HookType.AROUND)
