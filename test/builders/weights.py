"""Copies of a checkpoint with other weights, or the same weights under other names."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"


def changed(model: Path, folder: Path, change: Callable[[Weights], Weights]) -> Path:
    """A copy of ``model`` at ``folder`` with ``change`` applied to its weights."""
    shutil.copytree(model, folder)
    weights = change(load_file(model / WEIGHTS))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def weaker(weights: Weights) -> Weights:
    """One layer's MLP against its training: other answers, of the same sizes."""
    name = "model.language_model.layers.3.mlp.down_proj.weight"
    return weights | {name: weights[name] * -0.5}


def named_as_a_head(weights: Weights) -> Weights:
    """The same weights as ``model.layers.*``, which a head in DFlash's format calls its own."""
    return {name.replace("model.language_model.", "model."): x for name, x in weights.items()}


def sent(weights: Weights) -> list[str]:
    """``serialized_named_tensors`` of ``/update_weights_from_tensor``, in shared memory."""
    from sglang.srt.utils import MultiprocessingSerializer

    # A file descriptor could only be handed to a process with this one's key.
    torch.multiprocessing.set_sharing_strategy("file_system")
    data = MultiprocessingSerializer.serialize(list(weights.items()))
    return [base64.b64encode(data).decode()]
