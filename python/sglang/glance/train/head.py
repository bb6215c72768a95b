"""A DFlash-format head in plain torch: what SGLang serves, with gradients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sglang.glance.cli.files import whole
from sglang.srt.speculative.glance.engine.start.checkpoint import expected_shapes, plain_name
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """In float32 whatever comes in, and float32 out."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Plain 1-D rotary embedding, halves rotated against each other."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        self.register_buffer("frequencies", theta**-exponents, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """``positions [R, n]`` -> cosines and sines ``[R, 1, n, D / 2]``."""
        angles = positions[:, None, :, None] * self.frequencies
        return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """``x [R, heads, n, D]``."""
    (cos, sin), (a, b) = turn, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def layer_sizes(text: Any) -> dict[str, Any]:
    """The part of a head's ``config.json`` that has the sizes of the target's layers. ``text``: the
    target's text config of transformers."""
    hidden, heads = text.hidden_size, text.num_attention_heads
    return {
        "hidden_size": hidden,
        "intermediate_size": text.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": getattr(text, "head_dim", None) or hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": text.rms_norm_eps,
    }


class Projections(nn.Module):
    """Queries, keys and values of ``width`` channels in heads, and the way back."""

    def __init__(self, config: Mapping[str, Any], width: int) -> None:
        super().__init__()
        hidden, self.size = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden, bias=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)


class Attention(Projections):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, config["hidden_size"])
        self.q_norm = RMSNorm(self.size, config["rms_norm_eps"])
        self.k_norm = RMSNorm(self.size, config["rms_norm_eps"])

    def forward(self, x: Tensor, context: Tensor, turns: tuple, mask: Tensor) -> Tensor:
        """``x [R, Q, H]`` asks, ``context [R, T, H]`` and ``x`` answer; ``mask [R, 1, Q, T + Q]``.

        The context is not normalised per layer: the serving side projects it once when it is
        committed.
        """
        block_turn, all_turn = turns
        seen = torch.cat([context, x], dim=1)
        q = rotate(self.q_norm(self._split(self.q_proj(x))), block_turn)
        k = rotate(self.k_norm(self._split(self.k_proj(seen))), all_turn)
        v = self._split(self.v_proj(seen))
        repeat = self.heads // self.kv_heads
        k, v = (t.to(v.dtype).repeat_interleave(repeat, dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, context: Tensor, turns: tuple, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, turns, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """``config``: the checkpoint's ``config.json``. Parameters have the checkpoint's names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        num_taps = len(config["dflash_config"]["target_layer_ids"])
        self.fc = nn.Linear(num_taps * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(hidden, eps)
        self.rotary = Rotary(config["head_dim"], config["rope_theta"])

    def forward(self, embeds: Tensor, positions: Tensor, taps: Tensor, mask: Tensor) -> Tensor:
        """Hidden states ``[R, Q, H]`` whose product with the target's LM head are the logits.

        ``embeds [R, Q, H]``: the blocks' tokens and masks through the target's input embedding.
        ``positions [R, Q]``: their token indices. ``taps [R, T, K * H]``: the target's states of
        tokens 0..T-1. ``mask [R, Q, T + Q]``: True where a block token sees a context token (first
        T) or a block token.
        """
        context = self.hidden_norm(self.fc(taps))
        before = torch.arange(context.shape[1], device=positions.device).expand(len(positions), -1)
        turns = self.rotary(positions), self.rotary(torch.cat([before, positions], dim=1))
        x = embeds
        for layer in self.layers:
            x = layer(x, context, turns, mask[:, None])
        return self.norm(x)

    def initialise(self, seed: int) -> None:
        initialise(self, len(self.layers), seed)

    def load(self, folder: Path) -> None:
        """The weights of a checkpoint whose files were checked (``engine/start/checkpoint.py``)."""
        found = {}
        for path in sorted(folder.glob("*.safetensors")):
            found |= {plain_name(key): value for key, value in load_file(path).items()}
        wanted = expected_shapes(self.config, len(self.config["dflash_config"]["target_layer_ids"]))
        self.load_state_dict({name: found[name] for name in wanted})

    def save(self, folder: Path, config_text: str) -> None:
        save_checkpoint(self, folder, config_text)


@torch.no_grad()
def initialise(head: nn.Module, num_layers: int, seed: int) -> None:
    """Matrices of unit gain; those that write to the residual stream share one unit."""
    generator = torch.Generator().manual_seed(seed)
    shrink = (2 * num_layers) ** -0.5
    for name, weight in head.named_parameters():
        if weight.dim() == 2:
            noise = torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5
            out = name.endswith(("o_proj.weight", "down_proj.weight"))
            weight.copy_(noise * shrink if out else noise)


def save_checkpoint(head: nn.Module, folder: Path, config_text: str) -> None:
    """``config.json`` and bfloat16 ``model.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.detach().cpu().bfloat16() for name, w in head.state_dict().items()}
    path = folder / "model.safetensors"
    with whole(path) as part:
        save_file(weights, part, metadata={"format": "pt"})
    path.chmod(0o644)  # it is written for its owner alone, and a server may be another user's
    (folder / "config.json").write_text(config_text)


@torch.no_grad()
def round_to_bfloat16(head: nn.Module) -> None:
    """What a checkpoint keeps of the weights."""
    for weight in head.parameters():
        weight.copy_(weight.bfloat16())
