"""Lets SGLang take its CPU path on an x86-64 processor without AMX.

SGLang asks `torch.cpu._is_amx_tile_supported()` once, while `sglang.srt.utils.common` is imported,
and without AMX falls back to a backend that cannot verify a tree. The ops of this package need no
AMX. SGLang loads the entry points of `sglang.srt.platforms` earlier in that same import, in every
engine process, so `activate` can answer that one question; every other caller (torch's inductor
above all, which would emit AMX instructions) keeps hearing the truth.

This module must stay light: it imports neither sglang nor `sgl_kernel`.
"""

import os
import platform
import sys

ASKING_MODULE = "sglang.srt.utils.common"


def activate() -> None:
    """Entry point. Returns None: this package is no platform of its own."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") != "1":
        return
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return
    import torch

    if not torch.cpu._is_amx_tile_supported():
        answer_once(torch.cpu)


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
