"""A tiny random Qwen2.5-VL that speaks the shipped reader's tokens and takes its pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

PATCH_SIZE = 14  # SGLang takes patches of any other size for finished embeddings
COPIED = ("chat_template.jinja", "tokenizer.json", "generation_config.json")


def random_qwen25vl(reader: Path, out: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """``Qwen2_5_VLForConditionalGeneration`` of 0.9 M parameters, written to ``out``.

    ``reader``: a Qwen-VL checkpoint whose tokenizer, chat template and picture sizes are taken. One
    of the two vision layers attends within windows, as the family's do.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration(_config(reader)).to(getattr(torch, dtype))
    _draw(model, seed)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    for name in COPIED:
        shutil.copy(reader / name, out / name)
    for name in ("tokenizer_config.json", "processor_config.json"):
        settings = json.loads((reader / name).read_text())
        settings["processor_class"] = "Qwen2_5_VLProcessor"
        for part in ("image_processor", "video_processor"):
            if part in settings:
                settings[part]["patch_size"] = PATCH_SIZE
        if "video_processor" in settings:
            settings["video_processor"]["video_processor_type"] = "Qwen2VLVideoProcessor"
        (out / name).write_text(json.dumps(settings, indent=2) + "\n")
    return out


def _config(reader: Path):
    from transformers import Qwen2_5_VLConfig

    like = json.loads((reader / "config.json").read_text())
    text, vision = like["text_config"], like["vision_config"]
    special = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return Qwen2_5_VLConfig(
        **{name: like[name] for name in special},
        tie_word_embeddings=False,
        text_config={
            "vocab_size": text["vocab_size"],
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": text["max_position_embeddings"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 6, 6],
            },
            "bos_token_id": text["bos_token_id"],
            "eos_token_id": text["eos_token_id"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": vision["spatial_merge_size"],
            "temporal_patch_size": vision["temporal_patch_size"],
            "window_size": 4 * PATCH_SIZE,
            "fullatt_block_indexes": [1],
        },
    )


def _draw(model: torch.nn.Module, seed: int) -> None:
    """Weights of unit gain: the library's own would leave the logits nearly flat, full of ties."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight") or "norm1" in name or "norm2" in name or "ln_q" in name:
                weight.fill_(1.0)
                continue
            fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
            scale = 1.0 if "embed_tokens" in name else fan_in**-0.5
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * scale)
