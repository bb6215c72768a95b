"""A random EAGLE3 head for a given target, in the layout of SGLang's LlamaForCausalLMEagle3."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

NUM_TAPS = 3


def random_eagle3_head(target: Path, out: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """One decoder layer with its own LM head over the target's whole vocabulary.

    The embedding is the target's. SGLang's default taps (2, L / 2, L - 3) collide in a target of
    six layers, so the head names its own.
    """
    config = _config(json.loads((target / "config.json").read_text()))
    config["dtype"] = dtype
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in _shapes(config).items():
        noise = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        weight = torch.ones(shape) if len(shape) == 1 else noise
        weights[name] = weight.to(getattr(torch, dtype))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _config(target: dict) -> dict:
    text = target.get("text_config", target)
    num_layers = text["num_hidden_layers"]
    if num_layers < NUM_TAPS + 1:
        raise ValueError(f"expected a target of at least {NUM_TAPS + 1} layers, got {num_layers}")
    kept = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "hidden_act", "rms_norm_eps", "rope_parameters", "max_position_embeddings", "vocab_size",
    )  # fmt: skip
    return {name: text[name] for name in kept} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "head_dim": text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"],
        "draft_vocab_size": text["vocab_size"],
        "tie_word_embeddings": False,
        "bos_token_id": text.get("bos_token_id"),
        "eos_token_id": text.get("eos_token_id"),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, (num_layers - 2) // 2, num_layers - 2]
        },
    }


def _shapes(config: dict) -> dict[str, tuple[int, ...]]:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return {
        "fc.weight": (hidden, NUM_TAPS * hidden),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_heads * head, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_heads * head, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }
