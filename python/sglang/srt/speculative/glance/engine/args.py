"""Start-up: what GLANCE refuses, and what it settles when a flag is absent."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from sglang.srt.speculative.glance.config import GlanceConfig, parse_head, resolve
from sglang.srt.speculative.glance.engine.checkpoint import check_weights

logger = logging.getLogger(__name__)

SUPPORTED_ARCHITECTURES = ("Qwen3VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
# Attention backends that read a tree mask in target verify, by device.
TREE_BACKENDS = {"cuda": ("flashinfer", "triton", "fa3"), "cpu": ("intel_amx",)}


# ServerArgs fields that must keep this value.
REQUIRED = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "dcp_size": 1,
    "attn_cp_size": 1,
    "tokenizer_worker_num": 1,  # its workers load no plugins
    "disaggregation_mode": "null",
    "enable_dp_attention": False,
    "enable_hierarchical_cache": False,
    "enable_hisparse": False,
    "enable_lora": False,
    "lora_paths": None,
    "enable_pdmux": False,
    "enable_two_batch_overlap": False,
    "enable_unified_memory": False,
    "enable_watermark": False,
    "speculative_adaptive": False,
    "speculative_draft_window_size": None,
    "speculative_num_steps": None,  # the depth follows from block and budget
    "speculative_accept_threshold_single": 1.0,  # relaxed acceptance is not lossless
    "speculative_accept_threshold_acc": 1.0,
    "speculative_use_rejection_sampling": False,
    "speculative_use_block_verification": False,
}


def flag_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def refuse(flag: str, got: Any, expected: str) -> None:
    raise ValueError(f"GLANCE does not support {flag}={got!r}: expected {expected}")


def check(args: Any) -> None:
    """Refuse, in one line that names the flag, what this release cannot serve exactly."""
    device = args.device.split(":")[0]
    if device not in TREE_BACKENDS:
        refuse("--device", args.device, f"one of {sorted(TREE_BACKENDS)}")
    if args.speculative_draft_model_path is None:
        refuse("--speculative-draft-model-path", None, "the path of a head in DFlash's format")
    for field, plain in REQUIRED.items():
        got = getattr(args, field)
        if got != plain and not (plain is False and got is None):
            refuse(flag_of(field), got, "no value" if plain is None else repr(plain))


def _draft_and_target(args: Any) -> tuple[dict, Any]:
    from sglang.srt.utils.hf_transformers_utils import get_config

    target = get_config(
        args.model_path,
        trust_remote_code=args.trust_remote_code,
        revision=args.revision,
        model_override_args=json.loads(args.json_model_override_args),
    )
    path = Path(args.speculative_draft_model_path)
    if (path / "mask_embedding.pt").exists():
        # It would be merged into the target's embedding, and the target's output would change.
        raise ValueError(
            f"--speculative-draft-model-path: {path} holds mask_embedding.pt, which rewrites a row "
            "of the target's embedding; GLANCE serves heads that leave the target as it is"
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(
                f"--speculative-draft-model-path: no config.json in {path}; expected a head "
                "checkpoint directory in DFlash's format"
            )
        return json.loads((path / "config.json").read_text()), target
    head = get_config(
        args.speculative_draft_model_path,
        trust_remote_code=args.trust_remote_code,
        revision=args.speculative_draft_model_revision,
    )
    return head.to_dict(), target


def load_config(args: Any) -> GlanceConfig:
    """The run's :class:`GlanceConfig`; ``args`` reads like ServerArgs."""
    head, target = _draft_and_target(args)
    if (target.architectures or [""])[0] not in SUPPORTED_ARCHITECTURES:
        refuse("--model-path", target.architectures, f"one of {SUPPORTED_ARCHITECTURES}")
    text = target.get_text_config()
    sizes = {
        name: getattr(text, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    }
    config = resolve(
        parse_head(head, sizes),
        block=args.speculative_dflash_block_size,
        budget=args.speculative_num_draft_tokens,
        topk=args.speculative_eagle_topk,
    )
    if config.topk > sizes["vocab_size"]:
        vocab = sizes["vocab_size"]
        refuse("--speculative-eagle-topk", config.topk, f"at most the vocabulary, {vocab}")
    return config


def _settle_backends(args: Any) -> None:
    device = args.device.split(":")[0]
    allowed = TREE_BACKENDS[device]
    if device == "cpu" and args.attention_backend is None:
        args.attention_backend = allowed[0]
    for field in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        got = getattr(args, field)
        if got is not None and got not in allowed:
            refuse(
                flag_of(field),
                got,
                f"one of {allowed}, the backends that read a tree mask on {device}",
            )
    draft = args.speculative_draft_attention_backend
    if draft is None:
        draft = args.decode_attention_backend or args.attention_backend
    if draft is not None and draft not in allowed:
        refuse("--speculative-draft-attention-backend", draft, f"one of {allowed}")
    args.speculative_draft_attention_backend = draft


def settle(args: Any) -> None:
    """Fill in every speculative field. ``args`` is SGLang's recording stand-in: reads see the
    resolution so far, assignments are recorded."""
    check(args)
    _settle_backends(args)
    config = load_config(args)
    if (folder := Path(args.speculative_draft_model_path)).is_dir():
        check_weights(folder, json.loads((folder / "config.json").read_text()), len(config.taps))
    args.speculative_dflash_block_size = config.block
    args.speculative_num_draft_tokens = config.budget
    args.speculative_eagle_topk = config.topk
    # The host sizes KV reserves by steps x topk; the real depth lives in GlanceConfig.
    args.speculative_num_steps = 1
    if args.max_running_requests is None:
        args.max_running_requests = 48
        logger.info("GLANCE: --max-running-requests not given, using 48")
    args.enable_mixed_chunk = False
    if args.enable_memory_saver:
        # Released weights come back by an update, which is the target's alone.
        args.enable_draft_weights_cpu_backup = True
    if args.device == "cpu":
        args.disable_overlap_schedule = True
    logger.info(
        "GLANCE: block=%d budget=%d topk=%d taps=%s",
        config.block,
        config.budget,
        config.topk,
        config.taps,
    )
