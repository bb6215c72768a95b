"""The wheel of python/: complete, ours alone, and found beside SGLang however that is installed."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from sglang.glance.cli.run import EXTRAS, module_of
from sglang_glance import COMMANDS, __version__

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(metadata.distribution("sglang").locate_file(""))
OURS = ("sglang/glance/", "sglang/srt/speculative/glance/")


PIP = [sys.executable, "-m", "pip", "--quiet"]
AS_IT_IS = ["--no-deps", "--no-build-isolation", "--no-index"]
NOT_SOURCE = ("build", "*.egg-info", "__pycache__")
# In place of setup.py: the ops as they were compiled for this checkout.
COMPILED = 'from setuptools import setup; setup(package_data={"sgl_kernel": ["*.so"]})'


def built(source: Path, out: Path) -> Path:
    command = [*PIP, "wheel", *AS_IT_IS, "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, timeout=500)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "python"
    shutil.copytree(ROOT / "python", source, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    return built(source, out)


@pytest.fixture(
    scope="module", params=["as compiled", pytest.param("compiled anew", marks=pytest.mark.slow)]
)
def kernel(request, tmp_path_factory) -> Path:
    """The wheel of sgl-kernel/, whose compilation takes minutes."""
    out = tmp_path_factory.mktemp("kernel")
    source = out / "sgl-kernel"
    anew = request.param == "compiled anew"
    ignore = shutil.ignore_patterns(*NOT_SOURCE, *(["*.so"] if anew else []))
    shutil.copytree(ROOT / "sgl-kernel", source, ignore=ignore)
    if not anew:
        (source / "setup.py").write_text(COMPILED)
    return built(source, out)


def test_holds_every_file_of_the_overlay_and_no_other(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    payload = {name for name in names if ".dist-info/" not in name}
    source = {
        str(path.relative_to(ROOT / "python"))
        for folder in OURS
        for path in (ROOT / "python" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert payload == source | {"sglang_glance.py"}
    assert any(name.endswith(".safetensors") for name in payload)


def test_holds_no_file_of_upstream(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    upstream = {str(path) for path in metadata.files("sglang")}
    assert len(upstream) > 1000
    assert names & upstream == set()


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_both_carry_licence_and_readme(wheel, kernel):
    for built, folder in ((wheel, "python"), (kernel, "sgl-kernel")):
        declared = about(built)
        assert declared["License-Expression"] == "Apache-2.0"
        assert declared["Requires-Python"] == ">=3.11"
        assert declared.get_payload().strip() == (ROOT / folder / "README.md").read_text().strip()
        with zipfile.ZipFile(built) as archive:
            (licence,) = [n for n in archive.namelist() if n.endswith("licenses/LICENSE")]
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


# What each command imports of these, by the extra's name; SGLang needs every other package too.
IMPORTED = """
import json, sys
from scripts.layers import hide_host
import grimp
hide_host()
graph = grimp.build_graph("sglang.glance", include_external_packages=True, cache_dir=None)
modules = dict(pair.split("=") for pair in sys.argv[1:])
print(json.dumps({name: sorted({"matplotlib", "scipy"} &
                               graph.find_upstream_modules(module, as_package=True))
                  for name, module in modules.items()}))
"""


def test_extras_name_what_each_command_imports(wheel):
    modules = [f"{name}={module_of(name)}" for name in COMMANDS]
    command = [sys.executable, "-c", IMPORTED, *modules]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name: needs for name, needs in json.loads(ran.stdout).items() if needs}
    assert imported["law"] == ["matplotlib", "scipy"]
    declared = {name: [] for name in about(wheel).get_all("Provides-Extra")}
    for each in map(Requirement, about(wheel).get_all("Requires-Dist")):
        for name in declared:
            if each.marker and each.marker.evaluate({"extra": name}):
                declared[name].append(each.name)
    assert declared.pop("load") == ["datasets"]
    assert declared.pop("all") == ["sglang-glance"]
    assert declared == imported
    assert set(declared) == EXTRAS


PROBE_KERNEL = """
import sgl_kernel, sgl_kernel_cpu_platform, torch
print(sgl_kernel.__file__, sgl_kernel.USES_TWINS, torch.ops.sgl_kernel.glance_tree_cpu)
"""


def test_pip_installs_both_wheels_beside_sglang(wheel, kernel, tmp_path):
    """Where SGLang and what both import are, and nothing of this checkout is."""
    site = tmp_path / "site"
    ours = ("sglang_glance", "sglang_kernel", "sgl_kernel", "__editable__", "__pycache__")
    link_all(SITE, site, ("sglang", "distutils-precedence", *ours))
    stock(site)
    command = [*PIP, "install", *AS_IT_IS, "--target", str(tmp_path / "ours")]
    subprocess.run([*command, str(wheel), str(kernel)], check=True, timeout=100)
    shutil.copytree(tmp_path / "ours", site, dirs_exist_ok=True)

    def python(*arguments: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHONPATH": str(site)}  # of the process that doctor starts
        ran = subprocess.run(
            [sys.executable, "-S", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    module = ("-m", "sglang_glance")
    assert python(*module, "--version") == f"glance {__version__} (sglang 0.5.23)\n"
    path, twins, _ = python("-c", PROBE_KERNEL).split(maxsplit=2)
    assert Path(path).is_relative_to(site) and twins == "False"
    doctor = python(*module, "doctor", "--verbose")
    assert "GLANCE can start here" in doctor
    assert f"sglang-kernel-cpu {metadata.version('sglang-kernel-cpu')}" in doctor


def test_declares_its_entry_point_and_its_host(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (points,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        (about,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        declared = archive.read(points).decode()
        assert "glance = sglang_glance:register" in declared
        assert "[console_scripts]\nglance = sglang_glance:main" in declared
        assert "Requires-Dist: sglang==0.5.23" in archive.read(about).decode()


def link_all(source: Path, folder: Path, skip: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if not entry.name.startswith(skip):
            (folder / entry.name).symlink_to(entry)


def stock(site: Path) -> None:
    """SGLang in folders of its own, so that files of ours can lie among its files."""
    for part in ("sglang", "sglang/srt", "sglang/srt/speculative"):
        link_all(SITE / part, site / part, ("srt", "speculative", "glance", "__pycache__"))
    for info in SITE.glob("sglang-*.dist-info"):
        (site / info.name).symlink_to(info)


def wheels(site: Path, wheel: Path) -> None:
    """Both unpacked in one place: our files inside SGLang's package."""
    stock(site)
    zipfile.ZipFile(wheel).extractall(site)


def editable_sglang(site: Path, wheel: Path) -> None:
    """SGLang's sources elsewhere, on the path by a .pth; our wheel in site-packages."""
    elsewhere = site.parent / "sglang-checkout" / "python"
    link_all(SITE / "sglang", elsewhere / "sglang", ("glance", "__pycache__"))
    for info in SITE.glob("sglang-*.dist-info"):
        (site / info.name).symlink_to(info)
    (site / "__editable__.sglang.pth").write_text(f"{elsewhere}\n")
    zipfile.ZipFile(wheel).extractall(site)


def both_editable(site: Path, wheel: Path) -> None:
    """Two checkouts, two .pth files; the entry point from a .dist-info as pip leaves it."""
    editable_sglang(site, wheel)
    shutil.rmtree(site / "sglang")
    (site / "sglang_glance.py").unlink()
    (site / "__editable__.sglang_glance.pth").write_text(f"{ROOT / 'python'}\n")


PROBE = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
import sglang, sglang.glance.shipped as assets, sglang.srt.speculative.glance as ours
from sglang.srt.speculative.spec_registry import get_spec
print(json.dumps([type(get_spec("glance")).__name__, sglang.__file__, ours.__file__,
                  all(folder.joinpath("model.safetensors").is_file()
                      for folder in (assets.READER, assets.HEAD, assets.EAGLE3_HEAD))]))
"""


@pytest.mark.parametrize("layout", [wheels, editable_sglang, both_editable])
def test_registers_in_every_layout(layout, wheel, tmp_path):
    site = tmp_path / "site"
    link_all(SITE, site, ("sglang", "__editable__", "__editable___", "distutils", "__pycache__"))
    for kernel in SITE.glob("*sglang_kernel*"):
        (site / kernel.name).symlink_to(kernel)
    layout(site, wheel)
    start = f"import site; site.addsitedir({str(site)!r})\n"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", start + PROBE],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    algorithm, host, ours, has_data = json.loads(ran.stdout.splitlines()[-1])
    assert algorithm == "GlanceSpecAlgo", ran.stderr[-3000:]
    assert has_data
    assert Path(host).is_relative_to(tmp_path)
    inside = ROOT / "python" if layout is both_editable else site
    assert Path(ours).is_relative_to(inside)
