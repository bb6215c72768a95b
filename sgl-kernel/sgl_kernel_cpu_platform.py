"""Lets SGLang take its CPU path on an x86-64 machine that has no accelerator.

SGLang takes that path where the environment variable SGLANG_USE_CPU_ENGINE is 1. It also asks
`torch.cpu._is_amx_tile_supported()` once, while `sglang.srt.utils.common` is imported, and without
AMX falls back to a backend that cannot verify a tree. The ops of this package need no AMX. SGLang
loads the entry points of `sglang.srt.platforms` earlier in that same import, in every engine
process, so `activate` can set the variable where nobody has, and answer that one question. Every
other caller (torch's inductor above all, which would emit AMX instructions) keeps hearing the
truth.

This module must stay light: it imports neither sglang nor `sgl_kernel`.
"""

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

ASKING_MODULE = "sglang.srt.utils.common"
CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"


def activate() -> None:
    """Entry point. Returns None: this package is no platform of its own."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return
    import torch

    if CPU_ENGINE not in os.environ and not has_accelerator(torch) and has_our_ops():
        os.environ[CPU_ENGINE] = "1"  # child processes inherit it
    if os.environ.get(CPU_ENGINE) == "1" and not torch.cpu._is_amx_tile_supported():
        answer_once(torch.cpu)


def has_accelerator(torch) -> bool:
    """Whether torch can use any device but the CPU here: a GPU that is hidden does not count."""
    return torch.accelerator.current_accelerator(check_available=True) is not None


def has_our_ops() -> bool:
    """Whether `sgl_kernel` is this package's and not SGLang's CUDA build."""
    found = find_spec("sgl_kernel")
    return bool(found and found.origin) and (Path(found.origin).parent / "twins").is_dir()


def answer_once(cpu_module) -> None:
    """Replace `cpu_module._is_amx_tile_supported` until ASKING_MODULE has asked.

    The stand-in answers True to ASKING_MODULE and puts the original back; other callers get the
    original's answer.
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
