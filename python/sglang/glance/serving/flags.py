"""The flags and the environment that a server needs on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

CPU_ENGINE = {"SGLANG_USE_CPU_ENGINE": "1"}
POOL_TOKENS = 20000
# Of a server that a command starts for itself. The pool is bounded by its tokens. The memory
# fraction only has to be generous: what other processes take while a server loads counts too.
_SHORT_LIVED = {
    "cpu": "--attention-backend intel_amx --mem-fraction-static 0.8 --max-running-requests 8 "
    "--skip-server-warmup --sleep-on-idle",
    "cuda": "--skip-server-warmup",
}
_SHORT_LIVED_TOKENS = 12000


def this_device() -> str:
    """``cuda`` where torch sees a GPU, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def compute_threads() -> dict[str, str]:
    """Half of the cores compute. OpenMP's threads wait for each other by spinning: where one
    shares its core with a client or the engine's other processes, a layer can take ten times as
    long."""
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))}


def environment(device: str) -> dict[str, str]:
    """What a server needs beside its flags; what the shell sets already goes before it."""
    return {} if device == "cuda" else {**CPU_ENGINE, **compute_threads()}


def short_lived(device: str, context: int | None = None) -> tuple[str, ...]:
    """Of a server that a command starts, asks and stops. ``context``: its longest request, in
    tokens."""
    flags = [*_SHORT_LIVED[device].split()]
    if device == "cpu":
        tokens = max(_SHORT_LIVED_TOKENS, 2 * (context or 0))
        flags = ["--device", "cpu", *flags, "--max-total-tokens", str(tokens)]
    return (*flags, *(("--context-length", str(context)) if context else ()))


def serving(
    model: Path, head: Path, device: str, *, algorithm: str = "GLANCE", dtype: str | None = None
) -> list[str]:
    """Of a server that a user keeps running."""
    flags = ["--model-path", str(model), "--speculative-algorithm", algorithm]
    flags += ["--speculative-draft-model-path", str(head)]
    flags += ["--dtype", dtype] if dtype else []
    if device == "cpu":
        flags += ["--device", "cpu"]
        # GLANCE settles the pool itself. SGLang's own would take most of the memory.
        flags += [] if algorithm == "GLANCE" else ["--max-total-tokens", str(POOL_TOKENS)]
    return flags


def shell_line(flags: list[str], device: str) -> str:
    """A command that can be pasted into a shell: this Python, whatever its ``PATH``."""
    variables = [f"{name}={value}" for name, value in environment(device).items()]
    return " ".join(
        [*variables, shlex.join([sys.executable, "-m", "sglang.launch_server", *flags])]
    )
