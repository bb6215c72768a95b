"""The host's surface: every SGLang symbol GLANCE calls or overrides, compared with the running one.

A row is ``dotted.path: parameter names`` (without ``self``), or None for a class, an attribute or a
constant that only has to exist. GLANCE was built against the versions in ``TESTED``; with any
other the table decides, and a mismatch refuses in one line.
"""

from __future__ import annotations

import importlib
import inspect
from importlib import metadata
from typing import Any, NamedTuple

from sglang.srt.speculative.glance.refusal import Unavailable

TESTED = ("0.5.23",)

_SRT = "sglang.srt"
_SPEC = f"{_SRT}.speculative"
_WEIGHTS = f"{_SRT}.model_executor.model_runner_components.weight_updater:WeightUpdater"
_CONTROL = f"{_SRT}.managers.tokenizer_control_mixin:TokenizerControlMixin"

SURFACE: dict[str, tuple[str, ...] | None] = {
    # registration and arguments
    f"{_SPEC}.spec_info:SpeculativeAlgorithm.register": (
        "name",
        "supports_overlap",
        "validate_server_args",
        "spec_class",
    ),
    f"{_SPEC}.spec_registry:CustomSpecAlgo": None,
    f"{_SPEC}.spec_registry:get_spec": ("name",),
    f"{_SRT}.plugins.hook_registry:HookRegistry.register": (
        "target",
        "hook",
        "hook_type",
        "source",
    ),
    f"{_SRT}.plugins.hook_registry:HookType.AROUND": None,
    f"{_SRT}.server_args:add_draft_attention_backend_choices": None,
    f"{_SRT}.arg_groups.choices:DRAFT_ATTENTION_BACKEND_CHOICES": None,
    f"{_SRT}.arg_groups.overrides:resolving_view": None,
    f"{_SRT}.arg_groups.overrides:record_foreign_defaults": ("server_args", "source", "resolve"),
    f"{_SRT}.arg_groups.resolution_hooks:register_resolution_hook": ("name",),
    f"{_SRT}.arg_groups.model_path_hook:handle_model_source_paths": ("server_args",),
    f"{_SRT}.runtime_context:get_context": (),
    f"{_SRT}.runtime_context:RuntimeContext.is_config_namespace_published": ("name",),
    f"{_SRT}.runtime_context:get_spec": (),
    f"{_SRT}.runtime_context:get_exec": (),
    f"{_SRT}.runtime_context:get_observability": (),
    f"{_SRT}.runtime_context:get_serving": (),
    f"{_SRT}.utils.hf_transformers_utils:get_config": None,
    f"{_SRT}.utils.common:async_h2d": ("args", "dtype", "device"),
    f"{_SRT}.arg_groups.overrides:declare_resolution": ("server_args", "source", "fields"),
    f"{_SRT}.arg_groups.attention_hook:handle_attention_backend_compatibility": ("server_args",),
    f"{_SRT}.runtime_context:get_platform": (),
    # hooked functions
    f"{_SRT}.constrained.xgrammar_backend:XGrammarGrammarBackend.apply_vocab_mask": (
        "logits",
        "vocab_mask",
    ),
    f"{_SRT}.layers.amx_utils:dtype_is_supported": ("weight",),
    f"{_SRT}.mem_cache.allocation:get_last_loc": (
        "req_to_token",
        "req_pool_indices_tensor",
        "prefix_lens_tensor",
    ),
    f"{_SPEC}.spec_info:create_dummy_verify_input": (
        "spec_algorithm",
        "custom_mask",
        "num_tokens_per_req",
        "is_draft_worker",
    ),
    f"{_SPEC}.dflash_utils:validate_dflash_request": ("req", "enable_overlap"),
    f"{_SPEC}.spec_sampling_mask:validate_spec_sampling_mask_request": ("req", "spec_algorithm"),
    # weights that change
    f"{_SRT}.managers.scheduler_components.weight_updater:"
    "SchedulerWeightUpdaterManager._select_runners": ("selector",),
    f"{_WEIGHTS}.update_weights_from_tensor": ("named_tensors", "load_format"),
    f"{_WEIGHTS}.load_weights_from_distributed": ("named_tensors",),
    f"{_WEIGHTS}.end_weight_update": ("run_post_load",),
    f"{_CONTROL}.release_memory_occupation": ("obj", "request"),
    f"{_CONTROL}.resume_memory_occupation": ("obj", "request"),
    # between rounds
    f"{_SRT}.managers.overlap_utils:FutureMap": (
        "device",
        "spec_algo",
        "req_to_token_pool",
        "needs_cpu_seq_lens",
        "needs_confidence_relay",
    ),
    f"{_SPEC}.dflash_info_v2:DFlashDraftInputV2": None,
    f"{_SPEC}.dflash_info_v2:DFlashDraftInputV2.prepare_for_decode": ("batch",),
    f"{_SRT}.mem_cache.allocation:alloc_for_spec_decode": (
        "tree_cache",
        "req_to_token_pool",
        "reqs",
        "req_pool_indices",
        "cur_kv_lens",
        "cur_kv_lens_cpu",
        "nxt_kv_lens",
        "nxt_kv_lens_cpu",
        "num_needed_tokens",
        "batch",
    ),
    f"{_SRT}.mem_cache.allocation_sizing:get_alloc_reserve_per_decode": (),
    f"{_SRT}.mem_cache.allocation_sizing:page_aligned_decode_alloc_lens": (
        "reqs",
        "reserve",
        "page_size",
    ),
    # draft
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.__init__": (
        "server_args",
        "gpu_id",
        "nccl_port",
        "target_worker",
    ),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": (
        "batch",
        "on_publish",
        "grammar_barrier",
        "pp_proxy_tensors",
    ),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc": (
        "target_hidden",
        "cache_loc",
        "positions",
        "cache_loc_2d",
        "commit_lens",
        "extend_lens",
    ),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._append_target_hidden_sequential": (
        "ctx_hidden",
        "ctx_positions",
        "ctx_cache_loc",
    ),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._validate_phase1_sampling_support": ("batch",),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.spec_v2_attn_backends": None,
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._make_next_draft_input_prefill": (
        "bonus_tokens",
        "seq_lens",
    ),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._defer_target_verify_gather": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._init_fused_kv_helper": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2._maybe_build_draft_sampler": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.init_attention_backends": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.init_cuda_graphs": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.prewarm_sampling": (),
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2.on_verify_complete_cpu": (
        "num_correct_drafts_per_req",
        "batch_size",
    ),
    f"{_SPEC}.dflash_info:DFlashVerifyInput": (
        "draft_token",
        "positions",
        "draft_token_num",
        "topk",
        "custom_mask",
        "capture_hidden_mode",
        "num_tokens_per_req",
        "ragged_verify_layout",
        "live_seq_lens_cpu",
        "candidate_max_seq_len_upper_bound",
        "kv_loc_plan",
        "kv_loc_cols",
    ),
    f"{_SRT}.models.dflash:DFlashDraftModel.project_target_hidden": ("target_hidden",),
    f"{_SRT}.models.dflash:DFlashAttention.apply_k_norm": ("k",),
    f"{_SRT}.models.dflash:DFlashAttention.apply_k_rope": ("positions", "k"),
    f"{_SRT}.mem_cache.kv_index_translator:KVIndexTranslator.plan": None,
    f"{_SRT}.mem_cache.kv_loc_plan:KVLocPlan.bind": ("batch", "reader", "cols"),
    f"{_SRT}.model_executor.forward_batch_info:ForwardBatch": None,
    f"{_SRT}.model_executor.forward_batch_info:ForwardMode.TARGET_VERIFY": None,
    f"{_SRT}.model_executor.forward_batch_info:CaptureHiddenMode.FULL": None,
    "sglang.kernels.ops.speculative.lilicorr:lilicorr_topk_lse": ("logits", "k"),
    f"{_SRT}.layers.logits_processor:should_apply_lm_head_quant_method": (
        "lm_head",
        "quant_method",
    ),
    f"{_SRT}.layers.logits_processor:LogitsProcessor._compute_lm_head": (
        "hidden_states",
        "lm_head",
        "embedding_bias",
        "out",
    ),
    # verify, accept, commit
    "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs_uniform_func": None,
    f"{_SPEC}.eagle_info:EagleVerifyInput": (
        "draft_token",
        "custom_mask",
        "positions",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "retrieve_cum_len",
        "spec_steps",
        "topk",
        "draft_token_num",
        "capture_hidden_mode",
        "seq_lens_sum",
        "seq_lens_cpu",
        "draft_probs",
        "prepared_out_cache_loc",
        "prepared_mrope_positions",
        "kv_loc_plan",
        "num_tokens_per_req",
    ),
    f"{_SPEC}.eagle_utils:eagle_prepare_for_verify": (
        "verify_input",
        "req_to_token_pool",
        "batch",
        "target_worker",
    ),
    f"{_SPEC}.eagle_utils:TreeMaskMode": None,
    f"{_SPEC}.eagle_utils:default_tree_mask_mode": (),
    f"{_SPEC}.spec_utils:GrammarTree.from_device": (
        "retrieve_next_token",
        "retrieve_next_sibling",
        "draft_token",
    ),
    f"{_SPEC}.spec_utils:build_grammar_vocab_mask": (
        "reqs",
        "tree",
        "sampling_info",
        "device",
        "barrier",
    ),
    f"{_SPEC}.spec_utils:move_accept_tokens_to_target_kvcache": (
        "batch",
        "accept_index",
        "num_correct_drafts",
        "token_to_kv_pool_allocator",
    ),
    f"{_SRT}.layers.sampler:Sampler.forward": (
        "logits_output",
        "sampling_info",
        "return_logprob",
        "top_logprobs_nums",
        "token_ids_logprobs",
        "positions",
        "logprob_logits",
    ),
    f"{_SRT}.layers.sampler:Sampler._preprocess_logits": ("logits", "sampling_info"),
    f"{_SRT}.layers.logits_processor:SamplingMaskOutput": (
        "token_ids",
        "lengths",
        "selected_logprobs",
        "support_logprobs",
        "statuses",
        "num_accept_tokens",
    ),
    f"{_SRT}.sampling.sampling_batch_info:SamplingBatchInfo.copy_for_forward": (),
    f"{_SRT}.layers.logprob_processor:compute_spec_logprobs": (
        "batch",
        "logits_output",
        "predict",
        "accept_index",
        "chain_stride",
    ),
    f"{_SRT}.managers.utils:GenerationBatchResult": None,
    f"{_SRT}.managers.scheduler_components.batch_result_processor:"
    "SchedulerBatchResultProcessor._resolve_spec_v2_tokens": ("result", "batch"),
    f"{_SRT}.managers.schedule_batch:Req.is_prefill_only": None,
    f"{_SRT}.layers.radix_attention:AttentionType.DECODER": None,
    f"{_SRT}.managers.schedule_batch:Req.update_finish_state": ("new_accepted_len",),
    f"{_SRT}.session.streaming_session:StreamingSession.try_cache_finished_req": ("req",),
    f"{_SRT}.sampling.custom_logit_processor:CustomLogitProcessor": None,
    f"{_SRT}.managers.tokenizer_manager:TokenizerManager._tokenize_one_request": ("obj",),
    f"{_SRT}.managers.tokenizer_manager:TokenizerManager._validate_one_request": (
        "obj",
        "input_ids",
    ),
    f"{_SRT}.mem_cache.memory_pool:KVWriteLoc": None,
    f"{_SRT}.layers.attention.verify_mask:VerifyMask": ("buffer", "mode", "max_bs", "is_read"),
    # CUDA graphs
    f"{_SRT}.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.get_spec_info": (
        "num_tokens",
    ),
    f"{_SRT}.model_executor.model_runner:ModelRunner._decode_cuda_graph_runner_cls": (),
    # targets
    f"{_SRT}.models.qwen3_vl:Qwen3LLMModel": None,
    f"{_SRT}.models.qwen2_5_vl:Qwen2_5_VLForConditionalGeneration": None,
}


class Seam(NamedTuple):
    """One row: ``found`` is the running signature, or why there is none; ``missing`` names a
    package, not SGLang's, that it cannot be imported without."""

    symbol: str
    expected: tuple[str, ...] | None
    found: str
    ok: bool
    missing: str | None = None


def check(symbol: str, expected: tuple[str, ...] | None) -> Seam:
    """Compare one row with the running host."""
    module, _, path = symbol.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name)
        if expected is None:
            return Seam(symbol, expected, "present", True)
        parameters = inspect.signature(target).parameters
    except (ImportError, AttributeError, TypeError, ValueError, OSError, RuntimeError) as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        foreign = name if name and name.split(".")[0] != symbol.split(".")[0] else None
        return Seam(symbol, expected, f"{type(error).__name__}: {error}", False, foreign)
    names = tuple(name for name in parameters if name != "self")
    return Seam(symbol, expected, f"({', '.join(names)})", names == expected)


def rows() -> list[Seam]:
    """The whole table against the running host. Imports much of SGLang."""
    return [check(symbol, expected) for symbol, expected in SURFACE.items()]


def host_version() -> str:
    return metadata.version("sglang")


def explain(fault: str, install: str = f"sglang=={TESTED[-1]}") -> str:
    """One line: the host's version, what is wrong with it, and the mend."""
    return f"sglang {host_version()} {fault}; install {install}"


def mismatch() -> str | None:
    """The first row that does not match, as one line; None when all do."""
    bad = [row for row in rows() if not row.ok]
    if not bad:
        return None
    row = bad[0]
    if row.missing is not None:
        return explain(f"cannot import {row.symbol}: {row.found}", row.missing)
    expected = "present" if row.expected is None else f"({', '.join(row.expected)})"
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return explain(f"has {row.symbol} {row.found}, expected {expected}{others}")


def host_problem() -> str | None:
    """Why GLANCE cannot register here, or None. Cheap on a tested version; on another the whole
    table is compared."""
    try:
        version = host_version()
    except metadata.PackageNotFoundError:
        return f"no installed distribution named sglang; install sglang=={TESTED[-1]}"
    return None if version in TESTED else mismatch()


def require() -> None:
    """Raise :class:`Unavailable` with the first mismatch, if any."""
    line = mismatch()
    if line is not None:
        raise Unavailable(f"GLANCE is not available: {line}")
