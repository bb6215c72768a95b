"""Start-up: what GLANCE refuses, and what it settles when a flag is absent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import record_foreign_defaults, resolving_view
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.engine.start import survey
from sglang.srt.speculative.glance.engine.start.backends import verify_backend
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights
from sglang.srt.speculative.glance.engine.start.models import Models, load_config, read_models
from sglang.srt.speculative.glance.engine.start.survey import TREE_BACKENDS, tree_backends
from sglang.srt.speculative.glance.fingerprint import fingerprint
from sglang.srt.speculative.glance.head_config import (
    describe_layers,
    layer_attention,
    trained_target,
)
from sglang.srt.speculative.glance.refusal import Refusal, refuse

logger = logging.getLogger(__name__)

MAX_RUNNING_REQUESTS = 48
MEMORY_SHARE = 1 / 8  # of a CPU's memory, for K/V, where no flag says how much

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
    "enable_return_hidden_states": False,  # the tapped states occupy that output
    "return_hidden_states_mode": None,
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


def _device(args: Any) -> str:
    return (args.device or survey.device()).split(":")[0]


def check(args: Any) -> None:
    """Refuse, in one line that names the flag, what this release cannot serve exactly."""
    device = _device(args)
    if device not in TREE_BACKENDS:
        refuse("--device", device, f"one of {sorted(TREE_BACKENDS)}")
    if (mix := survey.kernel_mix()) is not None:
        raise Refusal(f"GLANCE cannot start: {mix}")
    if device == "cpu" and (problem := survey.cpu_path_problem()) is not None:
        raise Refusal(f"GLANCE cannot run on this CPU: {problem}")
    if args.speculative_draft_model_path is None:
        refuse("--speculative-draft-model-path", None, "the path of a head in DFlash's format")
    for field, plain in REQUIRED.items():
        got = getattr(args, field)
        if got != plain and not (plain is False and got is None):
            refuse(flag_of(field), got, "no value" if plain is None else repr(plain))


def _settle_backends(args: Any) -> None:
    device = _device(args)
    allowed = tree_backends(device, args.dtype)
    if device == "cpu" and args.attention_backend is None:
        args.attention_backend = allowed[0]
    for field in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        got = getattr(args, field)
        if got is not None and got not in allowed:
            refuse(
                flag_of(field),
                got,
                f"one of {allowed}, the backends that read a tree mask on {device} with --dtype "
                f"{args.dtype}",
            )
    draft = args.speculative_draft_attention_backend
    if draft is None:
        draft = args.decode_attention_backend or args.attention_backend
    if draft is not None and draft not in allowed:
        refuse("--speculative-draft-attention-backend", draft, f"one of {allowed}")
    args.speculative_draft_attention_backend = draft


def before_the_models_are_read(server_args: Any, previous: Callable[[Any], None]) -> None:
    """SGLang's step that prepares the paths, and after it what has to be settled before SGLang
    reads a checkpoint: it keeps the dtype that it finds then."""
    previous(server_args)
    if (resolving_view(server_args).speculative_algorithm or "").upper() == "GLANCE":
        record_foreign_defaults(server_args, "GLANCE", settle_models)


def settle_models(args: Any) -> None:
    """Check both checkpoints, then settle the dtype and the K/V pool. ``args`` as in
    :func:`settle`."""
    check(args)
    models = read_models(args)
    config = load_config(args, models)
    if (folder := Path(args.speculative_draft_model_path)).is_dir():
        check_weights(folder, models.head, len(config.taps))
    _compare_targets(args, models.head)
    _settle_dtype(args, models)
    if _device(args) == "cpu":
        _settle_pool(args, models, config)


def _compare_targets(args: Any, head: dict[str, Any]) -> None:
    trained, target = trained_target(head), Path(args.model_path)
    served = fingerprint(target) if trained is not None and target.is_dir() else None
    if served not in (None, trained):
        logger.warning(
            "GLANCE: the head %s was trained for another target than %s: drafts will be poor, the "
            "output stays exact; train a head for this target, or serve the head's own",
            args.speculative_draft_model_path,
            target,
        )


def _settle_dtype(args: Any, models: Models) -> None:
    """One dtype for both models, since the head multiplies the target's states: SGLang reads each
    checkpoint's dtype apart. It makes float16 of a float32 checkpoint; a CPU's ops have none."""
    on_cpu = _device(args) == "cpu"
    if on_cpu and args.dtype in ("half", "float16"):
        refuse("--dtype", args.dtype, "bfloat16 or float32 on a CPU, whose ops have no float16")
    if args.dtype != "auto":
        return
    weights = models.text.dtype or models.target.dtype or torch.float32
    weights = str(weights).removeprefix("torch.")
    if on_cpu:
        args.dtype = "float32" if weights == "float32" else "bfloat16"
    else:
        args.dtype = "float16" if weights == "float32" else weights
    logger.info("GLANCE: --dtype not given, %s weights are served in %s", weights, args.dtype)


def _settle_pool(args: Any, models: Models, config: GlanceConfig) -> None:
    """Room for every running request at the full context length, within a share of memory.
    SGLang would reserve most of a CPU's memory."""
    if args.max_total_tokens is not None or args.mem_fraction_static is not None:
        return
    context = args.context_length or models.text.max_position_embeddings
    requests = args.max_running_requests or MAX_RUNNING_REQUESTS
    token_bytes = _kv_bytes(models, getattr(torch, args.dtype).itemsize)
    most = int(survey.memory_bytes() * MEMORY_SHARE) // token_bytes
    args.max_total_tokens = min(requests * (context + config.window), most)
    logger.info(
        "GLANCE: --max-total-tokens not given, using %d, %.1f GiB of K/V (%d requests of %d "
        "tokens, within an eighth of memory)",
        args.max_total_tokens,
        args.max_total_tokens * token_bytes / 2**30,
        requests,
        context,
    )


def _kv_bytes(models: Models, itemsize: int) -> int:
    """Bytes of K and V of one token, in the layers of target and head."""
    values = 0
    for get in (partial(getattr, models.text), models.head.get):
        size = get("head_dim", None) or get("hidden_size") // get("num_attention_heads")
        values += 2 * get("num_hidden_layers") * get("num_key_value_heads") * size
    return values * itemsize


def settle(args: Any) -> None:
    """Fill in every speculative field. ``args`` is SGLang's recording stand-in: reads see the
    resolution so far, assignments are recorded."""
    check(args)
    _settle_backends(args)
    models = read_models(args)
    config = load_config(args, models)
    args.speculative_dflash_block_size = config.block
    args.speculative_num_draft_tokens = config.budget
    args.speculative_eagle_topk = config.topk
    # The host sizes KV reserves by steps x topk; the real depth lives in GlanceConfig.
    args.speculative_num_steps = 1
    if args.max_running_requests is None:
        args.max_running_requests = MAX_RUNNING_REQUESTS
        logger.info("GLANCE: --max-running-requests not given, using %d", MAX_RUNNING_REQUESTS)
    args.enable_mixed_chunk = False
    if args.enable_memory_saver:
        # Released weights come back by an update, which is the target's alone.
        args.enable_draft_weights_cpu_backup = True
    if _device(args) == "cpu":
        args.disable_overlap_schedule = True
    logger.info(
        "GLANCE: block=%d budget=%d topk=%d taps=%s, %s verifies, %s drafts with %s",
        config.block,
        config.budget,
        config.topk,
        config.taps,
        verify_backend(args),
        args.speculative_draft_attention_backend,
        describe_layers(layer_attention(models.head)),
    )
