"""The C++ ops compile for both vector sets, whichever the machine of the tests has."""

from __future__ import annotations

import os
import runpy
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import setuptools
import torch

PACKAGE = Path(__file__).resolve().parents[3] / "sgl-kernel"


def extension(capability: str, patch: pytest.MonkeyPatch) -> setuptools.Extension:
    """What setup.py would build on a machine with this vector set."""
    built = {}
    patch.chdir(PACKAGE)
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    patch.setattr(setuptools, "setup", lambda **kwargs: built.update(kwargs))
    runpy.run_path("setup.py")
    return built["ext_modules"][0]


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_the_ops_compile(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.backends.cpu.get_cpu_capability() == capability:
        assert list((PACKAGE / "sgl_kernel").glob(f"_C_{capability.lower()}.*.so"))
        return
    made = extension(capability, monkeypatch)
    compiler = os.environ.get("CXX", "c++")
    folders = [*made.include_dirs, sysconfig.get_path("include")]
    flags = [*made.extra_compile_args, *(f"-I{folder}" for folder in folders)]

    def errors(source: str) -> str:
        command = [compiler, "-std=c++20", "-fsyntax-only", *flags, source]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(errors, made.sources))
    assert len(found) >= 5
    assert not any(found), "\n".join(found)[-3000:]
