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
from sglang.glance.cli.run import EXTRAS
from sglang_glance import COMMANDS, __version__

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(metadata.distribution("sglang").locate_file(""))
OURS = ("sglang/glance/", "sglang/srt/speculative/glance/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "python"
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "python", source, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


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


def test_carries_licence_readme_and_what_each_command_needs(wheel):
    declared = about(wheel)
    assert (declared["License-Expression"], declared["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert "glance doctor" in declared.get_payload()
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())
    extras = set(declared.get_all("Provides-Extra"))
    assert extras == EXTRAS | {"all", "load"}
    assert set(COMMANDS) >= EXTRAS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pip_installs_both_wheels_beside_sglang(wheel, tmp_path):
    """In a folder that has SGLang and what both import, but nothing of this checkout."""
    source = tmp_path / "sgl-kernel"
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so")
    shutil.copytree(ROOT / "sgl-kernel", source, ignore=ignore)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    options = ["--no-deps", "--no-build-isolation"]
    out = ["--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([*pip, "wheel", *options, *out], check=True, timeout=400)
    (kernel,) = tmp_path.glob("sglang_kernel_cpu-*.whl")
    declared = about(kernel)
    assert (declared["License-Expression"], declared["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert "USES_TWINS" not in declared.get_payload() and "sgl_kernel" in declared.get_payload()

    site = tmp_path / "site"
    ours = ("sglang_glance", "sglang_kernel", "sgl_kernel", "__editable__", "__pycache__")
    link_all(SITE, site, ("sglang", *ours))
    for part in ("sglang", "sglang/srt", "sglang/srt/speculative"):
        link_all(SITE / part, site / part, ("srt", "speculative", "glance", "__pycache__"))
    for info in SITE.glob("sglang-*.dist-info"):
        (site / info.name).symlink_to(info)
    install = [*pip, "install", *options, "--no-index", "--target", str(tmp_path / "ours")]
    subprocess.run([*install, str(wheel), str(kernel)], check=True, timeout=100)
    for path in (tmp_path / "ours").iterdir():
        if path.name == "sglang":
            shutil.copytree(path, site / "sglang", dirs_exist_ok=True)
        elif path.name != "bin":
            path.rename(site / path.name)

    def glance(*arguments: str) -> subprocess.CompletedProcess:
        start = f"import site; site.addsitedir({str(site)!r})\n"
        start += "import sglang_glance; raise SystemExit(sglang_glance.main())"
        command = [sys.executable, "-S", "-c", start, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(site)}  # of the process that doctor starts
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    assert glance("--version").stdout.strip() == f"glance {__version__} (sglang 0.5.23)"
    doctor = glance("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "GLANCE can start here" in doctor.stdout
    assert (
        f"sglang-kernel-cpu {metadata.version('sglang-kernel-cpu')}"
        in glance("doctor", "--verbose").stdout
    )


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


def wheels(site: Path, wheel: Path) -> None:
    """Both unpacked in one place: our files inside SGLang's package."""
    for part in ("sglang", "sglang/srt", "sglang/srt/speculative"):
        link_all(SITE / part, site / part, ("srt", "speculative", "glance", "__pycache__"))
    zipfile.ZipFile(wheel).extractall(site)


def editable_sglang(site: Path, wheel: Path) -> None:
    """SGLang's sources elsewhere, on the path by a .pth; our wheel in site-packages."""
    elsewhere = site.parent / "sglang-checkout" / "python"
    link_all(SITE / "sglang", elsewhere / "sglang", ("glance", "__pycache__"))
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
    for info in SITE.glob("sglang-*.dist-info"):
        (site / info.name).symlink_to(info)
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
