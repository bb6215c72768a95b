"""Which attention backend a GLANCE server gets on a GPU, through SGLang's own resolution."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sglang.glance.shipped import HEAD, READER
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.glance.refusal import Refusal

AMPERE = {"is_hopper_with_cuda_12_3": False, "is_sm100": False}
HOPPER, BLACKWELL = {**AMPERE, "is_hopper_with_cuda_12_3": True}, {**AMPERE, "is_sm100": True}
CHAIN = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 16}


def resolved(platform: dict[str, bool], flashinfer: bool = True, **flags: Any) -> Any:
    load_plugins()
    args = ServerArgs(
        model_path=str(READER),
        speculative_algorithm="GLANCE",
        speculative_draft_model_path=str(HEAD),
        device="cuda",
        mem_fraction_static=0.5,
        **flags,
    )
    with override_platform(has_flashinfer=flashinfer, **platform):
        args.resolve_once()
    return resolving_view(args)


@pytest.mark.parametrize("flags", [{}, CHAIN, {"speculative_eagle_topk": 8}])
@pytest.mark.parametrize("platform", [AMPERE, HOPPER, BLACKWELL])
def test_flashinfer_is_the_default_where_it_is_installed(platform: dict, flags: dict) -> None:
    args = resolved(platform, **flags)
    assert args.attention_backend == args.speculative_draft_attention_backend == "flashinfer"
    args = resolved(platform, flashinfer=False, **flags)
    assert args.attention_backend == args.speculative_draft_attention_backend == "triton"


@pytest.mark.parametrize("backend", ["triton", "fa3"])
def test_a_backend_that_is_named_is_kept(backend: str) -> None:
    args = resolved(HOPPER, attention_backend=backend)
    assert args.attention_backend == args.speculative_draft_attention_backend == backend


def test_float32_is_verified_by_a_backend_that_knows_it() -> None:
    """FlashInfer and FA3 take float16 and bfloat16 alone."""
    args = resolved(HOPPER, dtype="float32")
    assert args.attention_backend == args.speculative_draft_attention_backend == "triton"
    for flag in ("attention_backend", "decode_attention_backend"):
        for backend in ("flashinfer", "fa3"):
            with pytest.raises(Refusal, match=f"{backend}.*triton.*--dtype float32"):
                resolved(HOPPER, dtype="float32", **{flag: backend})


def test_target_and_head_share_a_dtype_where_none_is_given() -> None:
    """SGLang would serve the float32 target in float16, and its bfloat16 head in bfloat16."""
    assert resolved(HOPPER).dtype == "float16"
    assert resolved(HOPPER, dtype="bfloat16").dtype == "bfloat16"


def test_a_server_without_glance_keeps_sglangs_default() -> None:
    load_plugins()
    args = ServerArgs(model_path=str(READER), device="cuda", mem_fraction_static=0.5)
    with override_platform(has_flashinfer=True, **HOPPER):
        args.resolve_once()
    assert resolving_view(args).attention_backend == "fa3"


@pytest.mark.parametrize(
    ("flags", "verifies", "drafts"),
    [
        ({}, "flashinfer", "flashinfer"),
        ({"decode_attention_backend": "triton"}, "flashinfer", "triton"),
        ({"prefill_attention_backend": "fa3"}, "fa3", "flashinfer"),
        (
            {"decode_attention_backend": "triton", "speculative_attention_mode": "decode"},
            "triton",
            "triton",
        ),
        ({"speculative_draft_attention_backend": "fa3"}, "flashinfer", "fa3"),
    ],
)
def test_the_log_says_which_backend_verifies_and_which_drafts(
    flags: dict, verifies: str, drafts: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sglang.srt.speculative.glance.engine.start.args"):
        resolved(HOPPER, **flags)
    assert f"{verifies} verifies, {drafts} drafts" in caplog.text
