"""Everything GLANCE adjusts in SGLang 0.5.23 outside its own classes, a row each.

A row acts in a GLANCE server alone. A server with another algorithm or none, in which this plugin
is merely installed, takes SGLang's own functions. The only exceptions are the four rows of
``OUR_OPS``: they belong to this project's ``sgl_kernel`` and act wherever that package serves
SGLang's CPU path.

What is adjusted on one object only is adjusted where that object is made, in a GLANCE server's
worker: the target's capture setter in ``capture.py``, the head on a CPU in ``cpu_head.py``, the
weight updater of the head in ``weights.py``, the target's graph runner in ``round/graphs.py``, an
attention backend's page tables in ``round/window.py``. SGLang's hooks replace no property:
``start/started.py`` sets ``Req.is_prefill_only``. ``start/args.py`` and ``start/backends.py`` each
wrap one step of argument resolution, which SGLang offers to plugins.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.glance.engine.host.refusals import (
    masks_are_kept,
    refuse_at_the_door,
    refuse_on_a_cpu,
    refuse_request,
    unreadable_is_refused,
)
from sglang.srt.speculative.glance.engine.host.stopping import (
    cut_runs,
    keep_what_is_written,
    settle_as_decided,
)
from sglang.srt.speculative.glance.engine.host.weights import head_by_name_only
from xgrammar import apply_token_bitmask_inplace


def in_a_glance_server() -> bool:
    """Whether this process belongs to a server with ``--speculative-algorithm GLANCE``."""
    if not get_context().is_config_namespace_published("spec"):
        return False  # a process that serves nothing
    return (get_spec().speculative_algorithm or "").upper() == "GLANCE"


def on_our_cpu_ops() -> bool:
    """Whether ``sgl_kernel`` is this project's package for CPUs, not SGLang's own."""
    return hasattr(sys.modules.get("sgl_kernel"), "USES_TWINS")


class Adjustment(NamedTuple):
    """``target``: the host symbol; ``hook``: called as ``hook(original, *args, **kwargs)``;
    ``reason``; ``until``: when the row can go; ``acts``: asked at every call whether the hook
    answers it or the original."""

    target: str
    hook: Callable[..., Any]
    reason: str
    until: str
    acts: Callable[[], bool] = in_a_glance_server

    def gated(self) -> Callable[..., Any]:
        """The hook where the row acts, the original everywhere else."""

        @functools.wraps(self.hook)
        def hook(original: Callable, *args: Any, **kwargs: Any) -> Any:
            if not self.acts():
                return original(*args, **kwargs)
            return self.hook(original, *args, **kwargs)

        return hook


def last_slots(
    original: Callable,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
) -> torch.Tensor:
    """Slot of each request's last cached token, -1 for an empty prefix. ``[bs] int64``."""
    if req_to_token.device.type != "cpu":
        return original(req_to_token, req_pool_indices, prefix_lens)
    last = req_to_token[req_pool_indices, (prefix_lens - 1).clamp(min=0)].to(torch.int64)
    return torch.where(prefix_lens > 0, last, last.new_full((), -1))


def dummy_input_width(
    original: Callable,
    spec_algorithm: Any,
    custom_mask: Any,
    num_tokens_per_req: int,
    is_draft_worker: bool,
) -> Any:
    """The shape-only verify input of warm-up runs, at the runner's own width."""
    spec_info = original(spec_algorithm, custom_mask, num_tokens_per_req, is_draft_worker)
    spec_info.draft_token_num = num_tokens_per_req
    spec_info.num_tokens_per_req = num_tokens_per_req
    return spec_info


def mask_on_cpu(original: Callable, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """``logits [n, V]``, in place; ``vocab_mask [n, ceil(V / 32)] int32``."""
    if logits.device.type == "cpu":
        apply_token_bitmask_inplace(logits, vocab_mask, backend="cpu")
    else:
        original(logits=logits, vocab_mask=vocab_mask)


def our_product_takes(weight: torch.Tensor) -> bool:
    """Our `sgl_kernel` multiplies float32 and bfloat16, a row the same in any batch. SGLang's own
    has no float32, and reads another layout."""
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)


def packs_weight(original: Callable, weight: torch.Tensor) -> bool:
    return original(weight) or our_product_takes(weight)


def lm_head_by_rows(
    original: Callable, processor: Any, hidden_states: torch.Tensor, lm_head: Any, *more, **keys
) -> torch.Tensor:
    """``hidden_states [n, H]`` -> logits ``[n, V]``: the product that picks the tokens."""
    weight = getattr(lm_head, "weight", None)
    plain = (
        weight is not None
        and weight.dim() == 2
        and weight.is_contiguous()
        and not processor.use_fp32_lm_head
        and not hasattr(lm_head, "set_lora")
        and not should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
    )
    if not plain or not our_product_takes(weight):
        return original(processor, hidden_states, lm_head, *more, **keys)
    rows = hidden_states.to(weight.dtype)
    return torch.ops.sgl_kernel.weight_packed_linear(rows, weight, None, True)


OUR_OPS = (
    Adjustment(
        "sglang.srt.mem_cache.allocation.get_last_loc",
        last_slots,
        "page sizes above 1 launch a Triton kernel on a CPU",
        "upstream dispatches on the device there",
        on_our_cpu_ops,
    ),
    Adjustment(
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammarBackend.apply_vocab_mask",
        mask_on_cpu,
        "on a CPU the mask of strict thinking without a grammar ends the scheduler",
        "upstream applies this mask on a CPU, as it does a grammar's",
        on_our_cpu_ops,
    ),
    Adjustment(
        "sglang.srt.layers.amx_utils.dtype_is_supported",
        packs_weight,
        "in float32 a CPU multiplies by torch's product, which copies the weight at every call and "
        "sums a row otherwise in another batch",
        "upstream packs float32 weights",
        on_our_cpu_ops,
    ),
    Adjustment(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        lm_head_by_rows,
        "on a CPU the LM head in float32, and a tied one in bfloat16, is torch's product, in which "
        "a token's logits depend on the batch",
        "upstream packs every LM head",
        on_our_cpu_ops,
    ),
)

ADJUSTMENTS = (
    *OUR_OPS,
    Adjustment(
        "sglang.srt.speculative.spec_info.create_dummy_verify_input",
        dummy_input_width,
        "warm-up runs take the tree's width for the draft runner too",
        "upstream uses the num_tokens_per_req argument for the DFLASH family",
    ),
    Adjustment(
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        refuse_request,
        "tapped states occupy the hidden-states output; the sampler has no seeded min_p; places of "
        "a prompt are scored without tapped states: requests for these must be refused",
        "upstream asks the algorithm which requests it serves",
    ),
    Adjustment(
        "sglang.srt.speculative.spec_sampling_mask.validate_spec_sampling_mask_request",
        masks_are_kept,
        "sampling masks are refused for the DFLASH family where its own verify cannot sample",
        "upstream asks the algorithm which requests it serves",
    ),
    Adjustment(
        "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
        "_select_runners",
        head_by_name_only,
        "weights are loaded into the draft's model too, which may take a target's for its own",
        "upstream gives a draft only what is meant for it",
    ),
    *(
        Adjustment(
            f"sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin.{name}",
            refuse_on_a_cpu,
            "on a CPU the scheduler ends: it looks for a GPU to wait for",
            "upstream refuses there",
        )
        for name in ("release_memory_occupation", "resume_memory_occupation")
    ),
    Adjustment(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        refuse_at_the_door,
        "log-probabilities asked for out of range end the scheduler",
        "upstream refuses them",
    ),
    Adjustment(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._tokenize_one_request",
        unreadable_is_refused,
        "pictures and fields that cannot be read are answered with HTTP 500 and no reason",
        "upstream answers HTTP 400",
    ),
    Adjustment(
        "sglang.srt.managers.scheduler_components.batch_result_processor."
        "SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        cut_runs,
        "tokens of an accepted run behind the end of its request enter the next turn of a session, "
        "the K/V it owns and its count of reasoning tokens; of several stops in one run the host "
        "may take a later one",
        "upstream cuts a run at its earliest stop before it is committed",
    ),
    Adjustment(
        "sglang.srt.managers.schedule_batch.Req.update_finish_state",
        settle_as_decided,
        "the end of a run is decided when the run is cut",
        "the row above goes",
    ),
    Adjustment(
        "sglang.srt.session.streaming_session.StreamingSession.try_cache_finished_req",
        keep_what_is_written,
        "without overlap scheduling the next turn of a streaming session would read the K/V of the "
        "turn's last token, which no round has written",
        "upstream counts what has been written",
    ),
)


def install() -> None:
    """Queue the rows on SGLang's hook registry (it applies them after all plugins have run), and
    let ``--speculative-draft-attention-backend`` name the CPU's."""
    from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_draft_attention_backend_choices

    for row in ADJUSTMENTS:
        HookRegistry.register(row.target, row.gated(), HookType.AROUND)
    if "intel_amx" not in DRAFT_ATTENTION_BACKEND_CHOICES:
        add_draft_attention_backend_choices(["intel_amx"])
