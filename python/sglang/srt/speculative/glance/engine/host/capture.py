"""Tapping the target's fused states where SGLang 0.5.23 lacks the setter."""

from __future__ import annotations

import types
from typing import Any


def install_capture(model: Any) -> None:
    """Give ``model`` (a dense Qwen3-VL or Qwen2.5-VL) a working ``set_dflash_layers_to_capture``.

    Layer ids name layer outputs; the text model captures at the entry of the next layer, which for
    Qwen3-VL is after DeepStack's addition. Upstream's setter on dense Qwen3-VL calls a method its
    text model does not have; Qwen2.5-VL has none.
    """
    if hasattr(model.model, "set_dflash_layers_to_capture"):
        return

    def set_dflash_layers_to_capture(self: Any, layer_ids: list[int]) -> None:
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = [layer + 1 for layer in layer_ids]

    model.set_dflash_layers_to_capture = types.MethodType(set_dflash_layers_to_capture, model)
