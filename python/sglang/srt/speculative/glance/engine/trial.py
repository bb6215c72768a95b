"""What a server would do with some flags, up to where it would load weights.

Read by ``glance doctor``; no engine process imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

SETTLED = (
    "device",
    "dtype",
    "attention_backend",
    "context_length",
    "max_total_tokens",
    "max_running_requests",
    "speculative_dflash_block_size",
    "speculative_num_draft_tokens",
    "speculative_eagle_topk",
)


class Trial(NamedTuple):
    """``settled``: what the flags come to, by ServerArgs' field; ``refusal``: why a server would
    not start, or None."""

    settled: dict[str, Any]
    refusal: str | None


class Registration(NamedTuple):
    """What SGLang answers to the name GLANCE: ``problem`` is None when it is the algorithm."""

    algorithm: str
    problem: str | None


def try_start(flags: Sequence[str]) -> Trial:
    """Resolve ``flags`` as ``sglang.launch_server`` does, in this process' environment."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    try:
        args = prepare_server_args(list(flags))
        args.resolve_once()
    except SystemExit as error:  # argparse has said why
        return Trial({}, f"SGLang does not take these flags (exit code {error.code})")
    except Exception as error:  # noqa: BLE001  whatever ends a start is the answer
        lines = str(error).splitlines() or [type(error).__name__]
        return Trial({}, lines[-1])
    view = resolving_view(args)
    return Trial({name: getattr(view, name) for name in SETTLED}, None)


def registration() -> Registration:
    """Load the plugins as an engine process does, then look GLANCE up."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.glance.engine.algorithm import GlanceSpecAlgo
    from sglang.srt.speculative.spec_registry import get_spec

    load_plugins()
    algorithm = get_spec("GLANCE")
    if algorithm is None:
        return Registration(
            "absent",
            "no entry point sglang.srt.plugins:glance was run; install sglang-glance, and list "
            "glance in SGLANG_PLUGINS if that is set",
        )
    if isinstance(algorithm, GlanceSpecAlgo):
        return Registration("registered", None)
    try:
        algorithm.validate_server_args(None)
    except RuntimeError as error:
        return Registration("refused", str(error))
    return Registration("refused", f"{algorithm!r} is not GLANCE's")
