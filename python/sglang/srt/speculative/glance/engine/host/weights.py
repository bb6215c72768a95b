"""Weights that change while the server runs: an update is the target's, the head keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What may have written to a head's weights when it returns, also when it fails half way.
_LOADS = ("update_weights_from_tensor", "load_weights_from_distributed", "end_weight_update")


def head_by_name_only(original: Callable, manager: Any, selector: str = "all") -> list:
    """The model runners that an update goes to. The host hands the same path and tensors to target
    and draft. A head would load a target's ``model.layers.*`` as its own: it takes what is meant
    for ``selector="draft"``, and nothing else."""
    return original(manager, "target" if selector == "all" else selector)


class HeadUpdater:
    """The draft runner's ``WeightUpdater``, after each load of which ``follow`` is called: it makes
    the copies of the head's weights anew."""

    def __init__(self, updater: Any, follow: Callable[[], None]) -> None:
        self._updater, self._follow = updater, follow

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._updater, name)
        if name not in _LOADS:
            return method

        def load(*args: Any, **keys: Any) -> Any:
            try:
                return method(*args, **keys)
            finally:
                self._follow()

        return load
