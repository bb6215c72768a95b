"""Which target a checkpoint folder holds, in 32 characters.

A head is trained for one target. The trainer writes the target's fingerprint into the head's
``config.json``, and a server compares it with the target that it serves.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

# Of each tensor; 2 KiB in bfloat16. A target of 30 B parameters has about a thousand tensors.
ROWS, COLUMNS = 4, 256
LENGTH = 32


def fingerprint(folder: Path) -> str | None:
    """The same for every copy of a target, whatever its tensors and files are called, in float32
    or bfloat16. A copy in float16 has lost small weights and may differ.

    Reads a corner of every tensor, a few MB of the largest targets. None where the folder has no
    safetensors that can be read, or quantised ones.
    """
    try:
        if _is_quantised(folder):
            return None
        # A set: a checkpoint may keep a tied LM head a second time.
        corners = {corner for path in _files(folder) for corner in _corners(path)}
    except (OSError, ValueError, SafetensorError):
        return None
    if not corners:
        return None
    return hashlib.sha256("".join(sorted(corners)).encode()).hexdigest()[:LENGTH]


def _is_quantised(folder: Path) -> bool:
    return bool(json.loads((folder / "config.json").read_text()).get("quantization_config"))


def _files(folder: Path) -> list[Path]:
    """Those that the index names, where there is one: a folder may hold other exports too."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / name for name in names]
    return list(folder.glob("*.safetensors"))


def _corners(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as tensors:
        return [_corner(tensors.get_slice(key)) for key in tensors.keys()]  # noqa: SIM118


def _corner(tensor: Any) -> str:
    """A hash of the tensor's shape and of its first rows' first values, rounded to bfloat16."""
    shape = tensor.get_shape()
    where = (slice(ROWS), slice(COLUMNS)) if len(shape) > 1 else (slice(COLUMNS),) * len(shape)
    values = tensor[where]
    if values.is_floating_point():
        values = values.to(torch.bfloat16)
    raw = values.flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(str(list(shape)).encode() + raw).hexdigest()
