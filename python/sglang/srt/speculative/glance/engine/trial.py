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
