"""Draft heads with chosen behaviour, made from weights alone, in DFlash's checkpoint format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from scipy.optimize import linprog


def _write(like: Path, out: Path, weights: dict[str, torch.Tensor]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(like / "config.json", out / "config.json")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def random_head(like: Path, out: Path, seed: int = 0) -> Path:
    """The head ``like`` with matrices drawn anew and norms of one."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in load_file(like / "model.safetensors").items():
        if weight.dim() == 1:
            weights[name] = torch.ones_like(weight)
        else:
            noise = torch.randn(weight.shape, generator=generator)
            weights[name] = (noise / weight.shape[1] ** 0.5).to(weight.dtype)
    return _write(like, out, weights)


def constant_head(like: Path, target: Path, out: Path, wanted: Sequence[int]) -> Path:
    """The head ``like``, changed so that it drafts the tokens ``wanted`` first, always.

    Every layer adds zero, so each masked offset keeps the mask token's embedding e. The final norm
    gives e / rms(e) * w, and w turns that into a direction on which exactly the rows ``wanted`` of
    the tied LM head score highest.
    """
    weights = load_file(like / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(weights[name])
    embedding = _tied_embedding(target)
    config = json.loads((like / "config.json").read_text())
    mask = embedding[config["dflash_config"]["mask_token_id"]]
    mask = mask / (mask.square().mean() + config["rms_norm_eps"]).sqrt()
    norm = (_direction(embedding, wanted) / mask).to(weights["norm.weight"].dtype)
    top = (embedding @ (mask * norm.double())).topk(len(wanted)).indices.tolist()
    if set(top) != set(wanted):
        raise ValueError(f"rounding changed the best rows from {list(wanted)} to {top}")
    weights["norm.weight"] = norm
    return _write(like, out, weights)


def _direction(embedding: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """``[H] float64``: at least m on the rows ``wanted``, at most -m elsewhere, m largest."""
    num_rows, size = embedding.shape
    signs = -torch.ones(num_rows, dtype=torch.float64)
    signs[list(wanted)] = 1
    rows = torch.cat([-signs[:, None] * embedding, torch.ones(num_rows, 1)], dim=1)
    solution = linprog(
        [0.0] * size + [-1.0], A_ub=rows.numpy(), b_ub=[0.0] * num_rows,
        bounds=[(-1, 1)] * size + [(0, None)],
    )
    if solution.x is None or solution.x[-1] <= 0:
        raise ValueError(f"no direction ranks exactly the rows {list(wanted)} first")
    return torch.from_numpy(solution.x[:-1])


def _tied_embedding(target: Path) -> torch.Tensor:
    """``[V, H] float64``"""
    for name, weight in load_file(target / "model.safetensors").items():
        if name.endswith("embed_tokens.weight"):
            return weight.double()
    raise ValueError(f"no embed_tokens.weight in {target / 'model.safetensors'}")


def broken_head(like: Path, out: Path, **changes: object) -> Path:
    """``like`` with keys of its ``dflash_config`` replaced, or dropped where the value is None."""
    config = json.loads((like / "config.json").read_text())
    dflash = {**config["dflash_config"], **changes}
    config["dflash_config"] = {key: value for key, value in dflash.items() if value is not None}
    for key in changes:  # a copy at the top level would answer for it
        config.pop(key, None)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config))
    shutil.copy(like / "model.safetensors", out / "model.safetensors")
    return out
