"""The command line as it is typed: what it lists, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import sglang_glance
from sglang.glance.cli import progress
from sglang.glance.cli import run as command
from sglang.glance.cli.failures import Failed
from sglang.glance.cli.run import run
from sglang.glance.cli.terminal import messages, note, output
from sglang.glance.shipped import HEAD, READER

# Fails if anything of SGLang runs, and says what a console script would.
WITHOUT_SGLANG = """
import sys, sglang_glance
code = 0
try:
    code = sglang_glance.main(sys.argv[1:])
except SystemExit as end:
    code = end.code
host = sys.modules.get("sglang")
print("executed:", hasattr(host, "__version__") or "torch" in sys.modules)
sys.exit(code)
"""


def typed(*argv: str) -> subprocess.CompletedProcess[str]:
    """``glance ARGV``, with nothing on standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_SGLANG, *argv], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.endswith("executed: False\n")
    return ran


def test_the_list_and_the_version_need_no_sglang() -> None:
    listed, version = typed(), typed("--version")
    assert listed.returncode == version.returncode == 0
    for name in sglang_glance.COMMANDS:
        assert f"\n  {name} " in listed.stdout
    assert version.stdout.startswith(
        f"glance {sglang_glance.__version__} (sglang {metadata.version('sglang')})\n"
    )


@pytest.mark.parametrize("name", sglang_glance.COMMANDS)
def test_help_needs_no_sglang_and_fits_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = typed(name, "--help")
    assert ran.returncode == 0 and ran.stdout.startswith(f"usage: glance {name} ")
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture) -> None:
    assert sglang_glance.main(["serve"]) == 2
    assert capsys.readouterr().err.startswith("glance: no command 'serve'; there are doctor, ")


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs a command whose work ends with an exception."""

    def run_with(error: BaseException) -> int:
        def main(argv: list[str]) -> int:
            raise error

        monkeypatch.setattr(
            command.importlib, "import_module", lambda _: SimpleNamespace(main=main)
        )
        return run("demo", [])

    return run_with


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("--x: got 1"), 2, "glance demo: --x: got 1\n"),
        (Failed("a server ended"), 2, "glance demo: a server ended\n"),
        (
            OSError(28, "No space left on device", "rows"),
            2,
            "glance demo: rows: No space left on device\n",
        ),
        (
            ModuleNotFoundError("No module named 'scipy'", name="scipy"),
            2,
            "glance demo: needs the package scipy: pip install 'sglang-glance[demo]'\n",
        ),
        (KeyboardInterrupt(), 130, "glance demo: interrupted\n"),
    ],
)
def test_failures_are_one_line_and_a_code(
    ending: Callable, capsys: pytest.CaptureFixture, error: BaseException, code: int, said: str
) -> None:
    assert ending(error) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("bug", [KeyError("x"), RuntimeError("shapes"), AttributeError("y")])
def test_a_bug_keeps_its_traceback_and_is_no_finding(
    ending: Callable, capsys: pytest.CaptureFixture, bug: Exception
) -> None:
    assert ending(bug) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """A command that ends with code 2; returns its one line."""

    def ask(*argv: str) -> str:
        try:
            code = sglang_glance.main(list(argv))
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert code == 2 and said.out == ""
        assert said.err.count("\n") == 1, said.err
        return said.err

    return ask


@pytest.mark.parametrize("name", ["doctor", "demo", "audit", "bench", "law"])
def test_a_target_of_ones_own_needs_its_head(refused: Callable, tmp_path: Path, name: str) -> None:
    assert "give --head-path" in refused(name, "--model-path", str(tmp_path))


def test_paths_without_a_model_are_named(refused: Callable, tmp_path: Path) -> None:
    given = ("audit", "--model-path", str(READER), "--head-path", str(tmp_path))
    assert f"--head-path: {tmp_path} has no config.json" in refused(*given)
    given = ("audit", "--model-path", str(tmp_path / "gone"), "--head-path", str(HEAD))
    assert f"--model-path: {tmp_path / 'gone'} has no config.json" in refused(*given)


OUTPUTS = [
    (("audit", "--json"), "file"),
    (("demo", "--json"), "file"),
    (("law", "--json"), "file"),
    (("law", "--save"), "file"),
    (("law", "--plot"), "file"),
    (("bench", "--out"), "folder"),
    (("train", "--model-path", str(READER), "--data", "x", "--out"), "folder"),
    (("tasks",), "folder"),
    (("reader",), "folder"),
]


@pytest.mark.parametrize(("given", "kind"), OUTPUTS, ids=lambda value: " ".join(value[:1]))
def test_outputs_are_tried_before_work_starts(
    refused: Callable, tmp_path: Path, given: tuple[str, ...], kind: str
) -> None:
    (tmp_path / "file.png").touch()
    (tmp_path / "folder.png").mkdir()
    in_the_way = tmp_path / ("folder.png" if kind == "file" else "file.png")
    assert str(in_the_way) in refused(*given, str(in_the_way))
    if kind == "file":  # the parents of a folder are made
        nowhere = tmp_path / "gone" / "out.png"
        assert f"no folder {nowhere.parent}" in refused(*given, str(nowhere))
    # /proc takes no new file from anybody, root included.
    assert "cannot be written" in refused(*given, "/proc/out.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.png", "folder.png"]


def test_a_full_disk_ends_a_command_in_one_line(tmp_path: Path) -> None:
    """``tasks`` under a limit on a file's size, which fails a write as a full disk does: the first
    picture is smaller, a later one is not."""
    limited = (
        "import resource, signal, sys, sglang_glance; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (21000, 21000)); "
        "sglang_glance._leave_host_unexecuted(); "  # of no use here, and takes seconds
        "sys.exit(sglang_glance.main(['tasks', sys.argv[1], '--count', '9']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("glance tasks: ")
    assert "Traceback" not in ran.stderr
    rows = (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()
    assert rows and all(json.loads(row)["image"] for row in rows)


@pytest.mark.parametrize("width", ["60", "80"])
def test_piped_output_follows_columns(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    console = output()
    with console.capture() as capture:
        note(console, "word " * 100)
    assert int(width) - 5 <= max(map(len, capture.get().splitlines())) <= int(width)


def test_progress_without_a_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(progress, "REPORT_S", 0.0)
    with progress.bar(messages(), "answers", 3) as advance:
        advance(2, "loss 1.5")
    with progress.waiting(messages(), "starting a server"):
        pass
    said = capsys.readouterr().err
    assert "answers: 2/3 loss 1.5\n" in said
    assert "starting a server ...\nstarting a server: 0 s\n" in said
