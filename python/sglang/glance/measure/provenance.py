"""Where and with what a result was made: kept beside every result."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from sglang.glance.serving.flags import compute_threads, this_device

PACKAGES = ("sglang", "sglang-glance", "sglang-kernel-cpu", "torch", "transformers")
GPU_PACKAGES = ("flashinfer-python", "sglang-kernel", "triton")
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


class Provenance(msgspec.Struct, frozen=True):
    """``commit`` and ``dirty`` are None outside a checkout; ``data``: SHA-256 over model, head,
    prompts and pictures; ``kernels``: the ops of ``sgl_kernel``; ``load``: run queue before the
    start; ``machine``: the processor, and before it the GPU where there is one."""

    command: list[str]
    started: str
    commit: str | None
    dirty: bool | None
    machine: str
    cores: int
    memory_gib: float
    features: list[str]
    threads: str
    kernels: str
    load: float
    python: str
    versions: dict[str, str]
    data: str

    @property
    def shown_command(self) -> str:
        return shlex.join(["python", "-m", "sglang.glance", *self.command[1:]])

    @property
    def shown_versions(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in self.versions.items())


def describe(data: Iterable[Path]) -> Provenance:
    """This process' surroundings; ``data``: files and folders that the run reads."""
    from sglang.srt.speculative.glance.engine.start.survey import (  # imports torch
        cpu_ops,
        describe_device,
    )

    commit, dirty = _checkout()
    (name, features), packages = _processor(), PACKAGES
    if this_device() == "cuda":
        name, packages = f"{describe_device('cuda')}, {name}", (*PACKAGES, *GPU_PACKAGES)
    return Provenance(
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        machine=name,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        features=features,
        threads=(compute_threads() | os.environ)["OMP_NUM_THREADS"],
        kernels=cpu_ops(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        versions={name: _version(name) for name in packages},
        data=_digest(data),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _processor() -> tuple[str, list[str]]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    return facts.get("model name", platform.machine()), [f for f in CPU_FEATURES if f in flags]


def _checkout() -> tuple[str | None, bool | None]:
    here = Path(__file__).resolve().parent

    def git(*command: str) -> str:
        run = ["git", "-C", str(here), *command]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        return None, None


def _digest(data: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for each in data:
        for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
