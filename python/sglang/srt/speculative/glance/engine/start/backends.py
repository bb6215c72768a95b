"""Which attention backend verifies the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.runtime_context import get_platform
from sglang.srt.speculative.glance.engine.start.survey import tree_backends


def prefer_flashinfer(server_args: Any, previous: Callable[[Any], None]) -> None:
    """SGLang's step that picks a backend, and before it ours for a GLANCE server on a GPU.

    SGLang picks before an algorithm settles its flags. Where ``--speculative-eagle-topk`` is absent
    or 1 it would take FA3 on Hopper, and on Blackwell a backend that reads no tree mask.
    """
    args = resolving_view(server_args)
    ours = (args.speculative_algorithm or "").upper() == "GLANCE"
    if ours and args.device.split(":")[0] == "cuda" and args.attention_backend is None:
        allowed = tree_backends("cuda", args.dtype)
        usable = "flashinfer" in allowed and get_platform().has_flashinfer
        backend = "flashinfer" if usable else "triton"
        declare_resolution(server_args, prefer_flashinfer.__qualname__, attention_backend=backend)
    previous(server_args)


def verify_backend(args: Any) -> str:
    """The backend that SGLang runs a verify on."""
    if args.speculative_attention_mode == "decode":
        return args.decode_attention_backend or args.attention_backend
    return args.prefill_attention_backend or args.attention_backend
