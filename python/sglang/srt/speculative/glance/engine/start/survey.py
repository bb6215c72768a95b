"""What the running host offers GLANCE: its device, attention backends, CPU ops and registration.

Read by ``python -m sglang.glance doctor`` and, at start, by ``args.py``: both decide by the same
functions.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

# SGLang's switch for its CPU path. Where it is not set, and the machine is x86-64 and has no
# accelerator, `sgl_kernel_cpu_platform` sets it to 1 while SGLang is imported.
CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
# Distributions of a package ``sgl_kernel``: this project's, and SGLang's under two names.
KERNELS = ("sglang-kernel-cpu", "sglang-kernel", "sgl-kernel")
# Attention backends that read a tree mask in target verify, by device.
TREE_BACKENDS = {"cuda": ("flashinfer", "triton", "fa3"), "cpu": ("intel_amx",)}
FLOAT32 = ("float", "float32")  # what --dtype may say
NO_FLOAT32 = ("flashinfer", "fa3")  # their kernels take float16 and bfloat16


def tree_backends(kind: str, dtype: str) -> tuple[str, ...]:
    """Those of :data:`TREE_BACKENDS` that have kernels for ``dtype``."""
    names = TREE_BACKENDS[kind]
    return tuple(n for n in names if n not in NO_FLOAT32) if dtype in FLOAT32 else names


class Backend(NamedTuple):
    """``refusal``: why GLANCE would not use it here, or None."""

    name: str
    refusal: str | None


def device() -> str:
    """The device that a server started in this shell without ``--device`` runs on. Where nobody
    has set :data:`CPU_ENGINE`, SGLang has to be imported before."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None or os.environ.get(CPU_ENGINE) == "1" else found.type


def memory_bytes() -> int:
    """This machine's memory, or its control group's limit where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or no limit
        return total


def describe_device(kind: str) -> str:
    if kind == "cuda":
        name = torch.cuda.get_device_properties(0)
        return f"{name.name}, SM {name.major}.{name.minor}, {name.total_memory / 2**30:.0f} GiB"
    tiles = "AMX" if torch.cpu._is_amx_tile_supported() else "no AMX"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"CPU, {vectors}, {tiles}, {len(os.sched_getaffinity(0))} cores"


def backends(kind: str) -> list[Backend]:
    """Every attention backend the host lists, those that GLANCE prefers first."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES

    allowed = TREE_BACKENDS.get(kind, ())
    others = sorted(set(ATTENTION_BACKEND_CHOICES) - set(allowed))
    return [Backend(name, _absence(kind, name)) for name in allowed] + [
        Backend(name, _refusal(kind, name)) for name in others
    ]


def _refusal(kind: str, name: str) -> str:
    elsewhere = [device for device, names in TREE_BACKENDS.items() if name in names]
    if elsewhere:
        return f"needs device {elsewhere[0]}, this is {kind}"
    return "no tree mask in target verify"


def _absence(kind: str, name: str) -> str | None:
    if kind == "cpu":
        return cpu_path_problem()
    module = {"flashinfer": "flashinfer", "triton": "triton", "fa3": "sgl_kernel.flash_attn"}[name]
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:
        return f"{module} does not load: {error}"
    if name == "fa3" and torch.cuda.get_device_capability()[0] not in (8, 9):
        return "needs SM 8.x or 9.x"
    return None


def kernel_owners() -> dict[str, str]:
    """Versions of the installed distributions that own the package ``sgl_kernel``, by name."""
    owners = {}
    for name in KERNELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            owners[name] = metadata.version(name)
    return owners


def kernel_mix() -> str | None:
    """Why ``sgl_kernel`` cannot be trusted here, or None."""
    owners = kernel_owners()
    if len(owners) < 2:
        return None
    installed = " and ".join(f"{name} {version}" for name, version in owners.items())
    return (
        f"the package sgl_kernel is of {installed}, whose files overwrite each other: "
        f"pip uninstall {' '.join(owners)}, then install the one for this machine"
    )


def cpu_path_problem() -> str | None:
    """Why a server started in this shell would not take the CPU path, whose attention reads a tree
    mask, or None."""
    if (mix := kernel_mix()) is not None:
        return mix
    try:
        import sgl_kernel  # noqa: F401
    except (ImportError, OSError) as error:
        return f"sgl_kernel does not load: {error}"
    from sglang.srt.utils.common import cpu_has_amx_support

    switch = os.environ.get(CPU_ENGINE)
    if switch is None:  # this machine has an accelerator, or another `sgl_kernel`
        return f"the environment variable {CPU_ENGINE} is not set: set it to 1"
    if switch != "1":
        return f"the environment has {CPU_ENGINE}={switch}: set it to 1, or unset it"
    if not cpu_has_amx_support():
        return "SGLang does not take this processor for one with its CPU ops"
    return None


def cpu_ops() -> str:
    """Which implementation serves the ops of ``sgl_kernel``."""
    try:
        kernel: Any = importlib.import_module("sgl_kernel")
    except (ImportError, OSError) as error:
        return f"absent: {error}"
    if not hasattr(kernel, "USES_TWINS"):
        return "SGLang's CUDA build"
    if kernel.USES_TWINS:
        return "torch twins"
    built = [name for name in sys.modules if name.startswith("sgl_kernel._C")]
    return f"C++, built for {', '.join(name.split('_')[-1].upper() for name in built)}"
