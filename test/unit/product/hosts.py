"""Run as a script: one host after another, changed as a case says, each asked for GLANCE.

A process reads its host once, so every case runs in a fork of this one, which has imported SGLang
already. One JSON line a case: {"name": ..., "ended": "resolved" | exception name, "line": ...}.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable

from sglang.glance.shipped import HEAD, READER
from sglang.srt.speculative.glance.engine.host import seams

ASK = ("--speculative-algorithm", "GLANCE")
FLAGS = (
    *("--model-path", str(READER), "--device", "cpu", "--dtype", "float32"),
    *("--speculative-draft-model-path", str(HEAD), "--max-total-tokens", "4000"),
)


def version(number: str) -> None:
    real = importlib.metadata.version
    importlib.metadata.version = lambda name: number if name == "sglang" else real(name)


def changed_signature() -> None:
    from sglang.srt.speculative import eagle_utils

    eagle_utils.eagle_prepare_for_verify = lambda verify_input, batch: None


def gone() -> None:
    from sglang.srt.mem_cache import allocation

    del allocation.alloc_for_spec_decode


def other_registry() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.register = classmethod(lambda cls, name: None)


def more_to_answer() -> None:
    """The host asks algorithms a question that ours does not know."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.is_something_new = lambda self: False


def no_metadata() -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    importlib.metadata.version = version


CASES: dict[str, tuple[tuple[Callable, ...], tuple[str, ...]]] = {
    "as it is": ((), ASK),
    "lower case": ((), ("--speculative-algorithm", "glance")),
    "next version, same surface": ((lambda: version("0.5.24"),), ASK),
    "next version, changed": ((lambda: version("0.5.24"), changed_signature), ASK),
    "next version, changed, not asked": ((lambda: version("0.5.24"), changed_signature), ()),
    "same version, changed": ((changed_signature,), ASK),
    "two changes": ((changed_signature, gone), ASK),
    "other registry": ((lambda: version("0.6.0"), other_registry), ASK),
    "other registry, not asked": ((lambda: version("0.6.0"), other_registry), ()),
    "more to answer": ((more_to_answer,), ASK),
    "no metadata": ((no_metadata,), ASK),
    "budget of one": ((), (*ASK, "--speculative-num-draft-tokens", "1")),
    "two ranks": ((), (*ASK, "--tp-size", "2")),
    "no mask": ((), (*ASK, "--attention-backend", "torch_native")),
    "chain": ((), (*ASK, "--speculative-eagle-topk", "1")),
}


def resolve(flags: tuple[str, ...]) -> str:
    """What a launcher does before it starts processes. Returns the settled speculative fields."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    sys.argv = ["launch_server", *FLAGS, *flags]
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    args.resolve_once()
    view = resolving_view(args)
    return (
        f"{view.speculative_algorithm} N={view.speculative_num_draft_tokens} "
        f"K={view.speculative_eagle_topk} B={view.speculative_dflash_block_size} "
        f"{view.attention_backend}"
    )


def outcome(name: str) -> dict:
    changes, flags = CASES[name]
    for change in changes:
        change()
    try:
        return {"name": name, "ended": "resolved", "line": resolve(flags)}
    except (Exception, SystemExit) as end:  # noqa: BLE001  the outcome is the result
        return {"name": name, "ended": type(end).__name__, "line": str(end)}


def main() -> None:
    seams.rows()  # import the host once, before the forks
    for name in CASES:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(json.dumps(outcome(name)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
