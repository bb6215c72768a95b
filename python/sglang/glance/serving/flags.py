"""The flags and the environment that a server needs on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

CPU_ENGINE = {"SGLANG_USE_CPU_ENGINE": "1"}
POOL_TOKENS = 20000
# Of a server that a command starts for itself, often beside others. The pool is bounded by its
# tokens. The memory fraction only has to be generous: what other processes take while a server
# loads counts too.
_SHORT_LIVED = {
    "cpu": "--attention-backend intel_amx --mem-fraction-static 0.8 --max-running-requests 8 "
    "--skip-server-warmup --sleep-on-idle",
    "cuda": "--mem-fraction-static 0.9 --skip-server-warmup",
}
_SHORT_LIVED_TOKENS = {"cpu": 12000, "cuda": 65536}
# FlashInfer and FA3, which SGLang would choose for text and for pictures, have no float32. Triton
# multiplies float32 as TF32 unless told otherwise.
_FLOAT32_ON_CUDA = ("--attention-backend", "triton", "--mm-attention-backend", "sdpa")
_EXACT_TRITON = {"TRITON_F32_DEFAULT": "ieee"}


def this_device() -> str:
    """``cuda`` where torch sees a GPU, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def compute_threads() -> dict[str, str]:
    """Half of the cores compute. OpenMP's threads wait for each other by spinning: where one
    shares its core with a client or the engine's other processes, a layer can take ten times as
    long."""
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))}


def environment(device: str, flags: Sequence[str] = ()) -> dict[str, str]:
    """What a server with these ``flags`` needs beside them; what the shell sets already goes before
    it."""
    if device == "cuda":
        return _EXACT_TRITON if "float32" in flags else {}
    return {**CPU_ENGINE, **compute_threads()}


def short_lived(
    device: str, context: int | None = None, given: Sequence[str] = ()
) -> tuple[str, ...]:
    """Of a server that a command starts, asks and stops. ``context``: its longest request, in
    tokens; ``given``: the command's own flags, which follow these and go before them."""
    tokens = max(_SHORT_LIVED_TOKENS[device], 2 * (context or 0))
    flags = [*_SHORT_LIVED[device].split(), "--max-total-tokens", str(tokens)]
    if device == "cpu":
        flags = ["--device", "cpu", *flags]
    elif "float32" in given:
        flags += _FLOAT32_ON_CUDA
    return (*flags, *(("--context-length", str(context)) if context else ()), *given)


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
    elif dtype == "float32":
        flags += _FLOAT32_ON_CUDA
    return flags


def shell_line(flags: list[str], device: str) -> str:
    """A command that can be pasted into a shell: this Python, whatever its ``PATH``."""
    variables = [f"{name}={value}" for name, value in environment(device, flags).items()]
    return " ".join(
        [*variables, shlex.join([sys.executable, "-m", "sglang.launch_server", *flags])]
    )
