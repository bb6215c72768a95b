"""The C++ ops compile for AVX2 and for AVX-512, whichever of them this machine has."""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import setuptools
import torch
from sgl_kernel import library

PACKAGE = Path(__file__).resolve().parents[3] / "sgl-kernel"


def extension(capability: str, patch: pytest.MonkeyPatch) -> setuptools.Extension:
    """The extension that setup.py builds on a machine with this vector set."""
    setup_arguments = {}
    patch.chdir(PACKAGE)
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    patch.setattr(setuptools, "setup", lambda **kwargs: setup_arguments.update(kwargs))
    runpy.run_path("setup.py")
    return setup_arguments["ext_modules"][0]


@pytest.mark.parametrize("other", library.FOR_CUDA)
def test_a_package_of_two_distributions_is_refused(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    library.refuse_a_mix()  # no error: one distribution is installed here
    installed = importlib.metadata.version
    monkeypatch.setattr(
        library.metadata, "version", lambda name: "9.9" if name == other else installed(name)
    )
    with pytest.raises(
        ImportError, match=rf"{other} 9\.9.*pip uninstall sglang-kernel-cpu {other}"
    ):
        library.refuse_a_mix()


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_the_ops_compile(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.backends.cpu.get_cpu_capability() == capability:
        assert list((PACKAGE / "sgl_kernel").glob(f"_C_{capability.lower()}.*.so"))
        return
    module = extension(capability, monkeypatch)
    compiler = os.environ.get("CXX", "c++")
    folders = [*module.include_dirs, sysconfig.get_path("include")]
    flags = [*module.extra_compile_args, *(f"-I{folder}" for folder in folders)]

    def errors(source: str) -> str:
        command = [compiler, "-std=c++20", "-fsyntax-only", *flags, source]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        messages = list(pool.map(errors, module.sources))
    assert len(messages) >= 5
    assert not any(messages), "\n".join(messages)[-3000:]


@pytest.mark.slow
def test_the_ops_are_right_without_avx512(tmp_path: Path) -> None:
    """Build the ops as on a processor without AVX-512 and AMX, and run their tests."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return  # all other tests already run a build without AVX-512
    copy = tmp_path / "sgl-kernel"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("build", "*.so", "__pycache__"))
    env = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "PYTHONPATH": str(copy)}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=copy, env=env, check=True)
    assert list((copy / "sgl_kernel").glob("_C_avx2.*.so"))
    program = "import sys, sgl_kernel; print(sgl_kernel.__file__, *sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert str(copy) in loaded.stdout and "sgl_kernel._C_avx2" in loaded.stdout
    this_file = Path(__file__)
    tests = [sys.executable, "-m", "pytest", "-q", str(this_file.parent)]
    tests += [f"--ignore={this_file}", f"--ignore={this_file.parent / 'test_platform.py'}"]
    assert subprocess.run(tests, env=env | {"OMP_NUM_THREADS": "1"}).returncode == 0
