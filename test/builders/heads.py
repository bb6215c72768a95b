"""Draft heads with chosen behaviour, made from weights alone, in DFlash's checkpoint format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from scipy.optimize import linprog
from sglang.srt.speculative.glance.engine.start.checkpoint import expected_shapes


def config_of(head: Path) -> dict:
    return json.loads((head / "config.json").read_text())


def config_for(target: Path, mask_token_id: int, block: int = 16, num_layers: int = 2) -> dict:
    """A head's ``config.json`` for any target of the Qwen-VL families: it taps every layer but the
    last, whose output the host does not capture."""
    text = config_of(target)["text_config"]
    heads = text["num_attention_heads"]
    kept = ("hidden_size", "intermediate_size", "num_key_value_heads", "rms_norm_eps", "vocab_size")
    return {name: text[name] for name in kept} | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "head_dim": text.get("head_dim") or text["hidden_size"] // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": 10000.0,
        "max_position_embeddings": text["max_position_embeddings"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": block,
        "dflash_config": {
            "target_layer_ids": list(range(text["num_hidden_layers"] - 1)),
            "mask_token_id": mask_token_id,
        },
    }


def random_head(config: dict, out: Path, seed: int = 0) -> Path:
    """Matrices of unit gain, norms of one."""
    return _write(config, out, _random_weights(config, seed))


def constant_head(config: dict, target: Path, out: Path, wanted: Sequence[int]) -> Path:
    """Drafts the tokens ``wanted`` first, always.

    Every layer adds zero, so each masked offset keeps the mask token's embedding e. The final norm
    gives e / rms(e) * w, and w turns that into a direction on which exactly the rows ``wanted`` of
    the target's LM head score highest.
    """
    weights = _random_weights(config, seed=0)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(weights[name])
    embedding, lm_head = _vocabulary(target)
    mask = embedding[config["dflash_config"]["mask_token_id"]]
    mask = mask / (mask.square().mean() + config["rms_norm_eps"]).sqrt()
    norm = (_direction(lm_head, wanted) / mask).to(weights["norm.weight"].dtype)
    top = (lm_head @ (mask * norm.double())).topk(len(wanted)).indices.tolist()
    if set(top) != set(wanted):
        raise ValueError(f"rounding changed the best rows from {list(wanted)} to {top}")
    weights["norm.weight"] = norm
    return _write(config, out, weights)


def broken_head(like: Path, out: Path, **changes: object) -> Path:
    """``like`` with keys of its ``dflash_config`` replaced, or dropped where the value is None."""
    config = config_of(like)
    dflash = {**config["dflash_config"], **changes}
    config["dflash_config"] = {key: value for key, value in dflash.items() if value is not None}
    for key in changes:  # a copy at the top level would answer for it
        config.pop(key, None)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config))
    shutil.copy(like / "model.safetensors", out / "model.safetensors")
    return out


def _random_weights(config: dict, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    num_taps = len(config["dflash_config"]["target_layer_ids"])
    for name, shape in expected_shapes(config, num_taps).items():
        noise = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        weight = torch.ones(shape) if len(shape) == 1 else noise
        weights[name] = weight.to(torch.bfloat16)
    return weights


def _write(config: dict, out: Path, weights: dict[str, torch.Tensor]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _direction(rows: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """``[H] float64``: t + m or more on the rows ``wanted``, t - m or less elsewhere, m largest."""
    num_rows, size = rows.shape
    signs = -torch.ones(num_rows, 1, dtype=torch.float64)
    signs[list(wanted)] = 1
    limits = torch.cat([-signs * rows, signs, torch.ones(num_rows, 1)], dim=1)
    solution = linprog(
        [0.0] * (size + 1) + [-1.0],
        A_ub=limits.numpy(),
        b_ub=[0.0] * num_rows,
        bounds=[(-1, 1)] * size + [(None, None), (0, None)],
    )
    if solution.x is None or solution.x[-1] <= 0:
        raise ValueError(f"no direction ranks exactly the rows {list(wanted)} first")
    return torch.from_numpy(solution.x[:size])


def _vocabulary(target: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and LM head, each ``[V, H] float64``; the same tensor where they are tied."""
    weights = load_file(target / "model.safetensors")
    found = {name.rsplit(".", 2)[-2]: name for name in weights if name.endswith(".weight")}
    if "embed_tokens" not in found:
        raise ValueError(f"no embed_tokens.weight in {target / 'model.safetensors'}")
    embedding = weights[found["embed_tokens"]].double()
    return embedding, weights[found["lm_head"]].double() if "lm_head" in found else embedding
