"""Lets SGLang take its CPU path on an x86-64 machine that has no accelerator.

SGLang takes its CPU path where the environment variable SGLANG_USE_CPU_ENGINE is 1. SGLang also
calls `torch.cpu._is_amx_tile_supported()` once, while `sglang.srt.utils.common` is imported, and
without AMX falls back to a backend that cannot verify a tree. The ops of this package need no AMX.
SGLang loads the entry points of `sglang.srt.platforms` earlier in the same import, in every engine
process. `activate` can therefore set the variable where it is unset, and make SGLang's one call
return True. Every other caller gets torch's answer: torch's inductor would emit AMX instructions.

This module must import fast: it imports neither sglang nor `sgl_kernel`, and torch only if needed.
"""

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

ASKING_MODULE = "sglang.srt.utils.common"
CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"


def activate() -> None:
    """Entry point. Returns None, because this package adds no platform to SGLang."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return
    import torch

    if CPU_ENGINE not in os.environ and not has_accelerator(torch) and has_our_ops():
        os.environ[CPU_ENGINE] = "1"  # child processes inherit it
    if os.environ.get(CPU_ENGINE) == "1" and not torch.cpu._is_amx_tile_supported():
        answer_once(torch.cpu)


def has_accelerator(torch) -> bool:
    """Whether torch can use a device other than the CPU; a hidden GPU does not count."""
    return torch.accelerator.current_accelerator(check_available=True) is not None


def has_our_ops() -> bool:
    """Whether the installed `sgl_kernel` is this package, not SGLang's CUDA build."""
    found = find_spec("sgl_kernel")
    return bool(found and found.origin) and (Path(found.origin).parent / "twins").is_dir()


def answer_once(cpu_module) -> None:
    """Replace `cpu_module._is_amx_tile_supported` until ASKING_MODULE has called it.

    The replacement returns True to ASKING_MODULE and restores the original function. Other callers
    get the original function's answer.
    """
    original = cpu_module._is_amx_tile_supported
    if getattr(original, "is_stand_in", False):
        return

    def _is_amx_tile_supported() -> bool:
        if sys._getframe(1).f_globals.get("__name__") != ASKING_MODULE:
            return original()
        cpu_module._is_amx_tile_supported = original
        return True

    _is_amx_tile_supported.is_stand_in = True
    cpu_module._is_amx_tile_supported = _is_amx_tile_supported
