"""Copies of a target that differ in one respect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def copy_in_dtype(target: Path, out: Path, dtype: str) -> Path:
    """Weights and ``config.json`` in another dtype."""
    shutil.copytree(target, out)
    weights = load_file(out / "model.safetensors")
    cast = {name: weight.to(getattr(torch, dtype)) for name, weight in weights.items()}
    save_file(cast, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(_in_dtype(_config(out), dtype)))
    return out


def other_weights(target: Path, out: Path) -> Path:
    """A target of the same sizes that was trained otherwise."""
    shutil.copytree(target, out)
    weights = load_file(out / "model.safetensors")
    save_file(
        {name: weight * 2 for name, weight in weights.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    return out


def _config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def _in_dtype(config: object, dtype: str) -> object:
    if not isinstance(config, dict):
        return config
    return {
        name: dtype if name in ("dtype", "torch_dtype") else _in_dtype(value, dtype)
        for name, value in config.items()
    }
