"""The answer to SGLang's question about AMX, and how the package chooses its kernels."""

import importlib.metadata
import os
import subprocess
import sys
import types

import pytest
import sgl_kernel_cpu_platform as platform_plugin
import torch
from sgl_kernel import library
from sgl_kernel.schemas import SCHEMAS, op_name


def ask_from(module: str) -> bool:
    """What a function of that module would hear."""

    def ask() -> bool:
        return torch.cpu._is_amx_tile_supported()

    return types.FunctionType(ask.__code__, {"__name__": module, "torch": torch})()


@pytest.fixture
def no_amx(monkeypatch):
    """A machine without AMX and without an accelerator, whatever this one has."""
    original = lambda: False
    monkeypatch.setattr(platform_plugin, "has_accelerator", lambda torch: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", original)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.setattr(platform_plugin.platform, "machine", lambda: "x86_64")
    return original


def test_sglang_alone_hears_yes_and_once(no_amx):
    assert platform_plugin.activate() is None
    assert not ask_from("torch._inductor.cpu_vec_isa")
    assert ask_from("sglang.srt.utils.common")
    assert torch.cpu._is_amx_tile_supported is no_amx
    assert not ask_from("sglang.srt.utils.common")


def test_a_second_activation_stacks_nothing(no_amx):
    platform_plugin.activate()
    platform_plugin.activate()
    assert ask_from("sglang.srt.utils.common")
    assert torch.cpu._is_amx_tile_supported is no_amx


@pytest.mark.parametrize("engine, machine", [("0", "x86_64"), ("1", "aarch64")])
def test_elsewhere_nothing_is_replaced(no_amx, monkeypatch, engine, machine):
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", engine)
    monkeypatch.setattr(platform_plugin.platform, "machine", lambda: machine)
    platform_plugin.activate()
    assert torch.cpu._is_amx_tile_supported is no_amx


def test_a_machine_without_accelerator_needs_no_switch(no_amx, monkeypatch):
    monkeypatch.delenv(platform_plugin.CPU_ENGINE)
    platform_plugin.activate()
    assert os.environ[platform_plugin.CPU_ENGINE] == "1"
    assert ask_from("sglang.srt.utils.common")


@pytest.mark.parametrize(
    ("name", "value"),
    [("has_accelerator", lambda torch: True), ("has_our_ops", lambda: False)],
)
def test_elsewhere_the_switch_stays_the_users(no_amx, monkeypatch, name, value):
    monkeypatch.delenv(platform_plugin.CPU_ENGINE)
    monkeypatch.setattr(platform_plugin, name, value)
    platform_plugin.activate()
    assert platform_plugin.CPU_ENGINE not in os.environ
    assert torch.cpu._is_amx_tile_supported is no_amx


def test_another_build_of_sgl_kernel_is_not_ours(monkeypatch, tmp_path):
    assert platform_plugin.has_our_ops()
    found = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(platform_plugin, "find_spec", lambda name: found)
    assert not platform_plugin.has_our_ops()
    monkeypatch.setattr(platform_plugin, "find_spec", lambda name: None)
    assert not platform_plugin.has_our_ops()


def test_a_processor_with_amx_answers_for_itself(no_amx, monkeypatch):
    truth = lambda: True
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", truth)
    platform_plugin.activate()
    assert torch.cpu._is_amx_tile_supported is truth


def test_the_entry_point_is_installed_and_light():
    [entry] = importlib.metadata.entry_points(group="sglang.srt.platforms", name="sgl_kernel_cpu")
    assert entry.value == "sgl_kernel_cpu_platform:activate"
    code = (
        "import sys, sgl_kernel_cpu_platform;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'sglang', 'sgl_kernel')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


SGLANG_SAYS = """
import torch
torch.cpu._is_amx_tile_supported = lambda: False
from sglang.srt.utils import cpu_has_amx_support
from sglang.srt.utils.common import is_cpu
print(is_cpu(), cpu_has_amx_support(), torch.cpu._is_amx_tile_supported())
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
def test_stock_sglang_takes_its_cpu_path_without_amx_and_without_a_switch(monkeypatch):
    monkeypatch.delenv(platform_plugin.CPU_ENGINE, raising=False)
    assert run_python(SGLANG_SAYS) == "True True False"


def test_the_twins_serve_every_op_when_asked():
    code = (
        "import sgl_kernel, sys;print(sgl_kernel.USES_TWINS, any('_C_' in m for m in sys.modules))"
    )
    assert run_python(code, SGL_KERNEL_CPU_TWINS="1") == "True False"


def test_every_op_is_registered_and_the_forbidden_one_is_not():
    for schema in SCHEMAS:
        assert hasattr(torch.ops.sgl_kernel, op_name(schema))
    assert not hasattr(torch.ops.sgl_kernel, "fused_qk_norm_cpu")


def test_more_than_one_rank_is_refused():
    torch.ops.sgl_kernel.init_cpu_threads_env("0-1")
    torch.ops.sgl_kernel.initialize(1, 0)
    with pytest.raises(NotImplementedError, match="size 1, got 2"):
        torch.ops.sgl_kernel.initialize(2, 0)


def test_kernels_built_for_another_processor_are_named(monkeypatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="Reinstall it here"):
        library.load()


@pytest.mark.parametrize(
    "machine, built, loaded", [("AVX512", "avx2", "avx2"), ("AVX2", "avx512", None)]
)
def test_a_processor_runs_its_own_or_a_lesser_set(monkeypatch, machine, built, loaded):
    found = []
    fake = types.SimpleNamespace(
        util=types.SimpleNamespace(find_spec=lambda name: name.endswith(built) or None),
        import_module=found.append,
    )
    monkeypatch.setattr(library, "importlib", fake)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: machine)
    if loaded is None:
        with pytest.raises(ImportError, match=r"processor \(avx2\)"):
            library.load()
    else:
        library.load()
        assert found == [f"sgl_kernel._C_{loaded}"]
