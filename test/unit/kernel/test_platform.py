"""The answer to SGLang's call about AMX, and the kernels that the package loads."""

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
    """The answer that a function of `module` gets from torch."""

    def ask() -> bool:
        return torch.cpu._is_amx_tile_supported()

    return types.FunctionType(ask.__code__, {"__name__": module, "torch": torch})()


@pytest.fixture
def no_amx(monkeypatch):
    """Simulate an x86-64 machine without AMX or accelerator, with SGLang's CPU path on."""
    original = lambda: False
    monkeypatch.setattr(platform_plugin, "has_accelerator", lambda torch: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", original)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.setattr(platform_plugin.platform, "machine", lambda: "x86_64")
    return original


def test_only_sglangs_first_call_returns_true(no_amx):
    assert platform_plugin.activate() is None
    assert not ask_from("torch._inductor.cpu_vec_isa")
    assert ask_from("sglang.srt.utils.common")
    assert torch.cpu._is_amx_tile_supported is no_amx
    assert not ask_from("sglang.srt.utils.common")


def test_a_second_activation_changes_nothing(no_amx):
    platform_plugin.activate()
    platform_plugin.activate()
    assert ask_from("sglang.srt.utils.common")
    assert torch.cpu._is_amx_tile_supported is no_amx


@pytest.mark.parametrize("engine, machine", [("0", "x86_64"), ("1", "aarch64")])
def test_without_cpu_path_or_x86_torchs_function_stays(no_amx, monkeypatch, engine, machine):
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", engine)
    monkeypatch.setattr(platform_plugin.platform, "machine", lambda: machine)
    platform_plugin.activate()
    assert torch.cpu._is_amx_tile_supported is no_amx


def test_a_machine_without_accelerator_needs_no_variable(no_amx, monkeypatch):
    monkeypatch.delenv(platform_plugin.CPU_ENGINE)
    platform_plugin.activate()
    assert os.environ[platform_plugin.CPU_ENGINE] == "1"
    assert ask_from("sglang.srt.utils.common")


@pytest.mark.parametrize(
    ("name", "value"),
    [("has_accelerator", lambda torch: True), ("has_our_ops", lambda: False)],
)
def test_with_accelerator_or_other_ops_the_variable_stays_unset(no_amx, monkeypatch, name, value):
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


def test_with_amx_torchs_function_stays(no_amx, monkeypatch):
    has_amx = lambda: True
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", has_amx)
    platform_plugin.activate()
    assert torch.cpu._is_amx_tile_supported is has_amx


def test_the_entry_point_is_installed_and_imports_no_torch():
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


PRINT_CPU_SUPPORT = """
import torch
torch.cpu._is_amx_tile_supported = lambda: False
from sglang.srt.utils import cpu_has_amx_support
from sglang.srt.utils.common import is_cpu
print(is_cpu(), cpu_has_amx_support(), torch.cpu._is_amx_tile_supported())
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_stock_sglang_takes_its_cpu_path_without_amx_and_variable(monkeypatch):
    monkeypatch.delenv(platform_plugin.CPU_ENGINE, raising=False)
    assert run_python(PRINT_CPU_SUPPORT) == "True True False"


def test_the_variable_makes_the_twins_serve_every_op():
    code = (
        "import sgl_kernel, sys;print(sgl_kernel.USES_TWINS, any('_C_' in m for m in sys.modules))"
    )
    assert run_python(code, SGL_KERNEL_CPU_TWINS="1") == "True False"


def test_every_op_is_registered_and_fused_qk_norm_is_not():
    for schema in SCHEMAS:
        assert hasattr(torch.ops.sgl_kernel, op_name(schema))
    assert not hasattr(torch.ops.sgl_kernel, "fused_qk_norm_cpu")


def test_more_than_one_rank_is_refused():
    torch.ops.sgl_kernel.init_cpu_threads_env("0-1")
    torch.ops.sgl_kernel.initialize(1, 0)
    with pytest.raises(NotImplementedError, match="size 1, got 2"):
        torch.ops.sgl_kernel.initialize(2, 0)


def test_missing_kernels_for_this_processor_raise(monkeypatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="Reinstall it here"):
        library.load()


@pytest.mark.parametrize(
    "machine, built, loaded", [("AVX512", "avx2", "avx2"), ("AVX2", "avx512", None)]
)
def test_a_processor_loads_the_widest_vector_set_it_can_run(monkeypatch, machine, built, loaded):
    imported = []
    fake = types.SimpleNamespace(
        util=types.SimpleNamespace(find_spec=lambda name: name.endswith(built) or None),
        import_module=imported.append,
    )
    monkeypatch.setattr(library, "importlib", fake)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: machine)
    if loaded is None:
        with pytest.raises(ImportError, match=r"processor \(avx2\)"):
            library.load()
    else:
        library.load()
        assert imported == [f"sgl_kernel._C_{loaded}"]
