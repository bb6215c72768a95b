"""The README's first screen: every command that it prints does what it says, typed as printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HEAD, READER, Server, wait_until_up
from newcomer import ROOT, assert_read, assert_reads, press_ctrl_c, serving, typed
from sglang.glance.serving.server import free_port

README = (ROOT / "README.md").read_text()
SCREEN_LINES = 55
# By its first words, what runs a command.
RUN_BY = {
    "make setup": "test_a_fresh_clone",
    "make demo": "test_demo",
    "make serve": "test_serve_and_its_curl",
    ".venv/bin/python examples/openai_client.py": "test_the_client_asks_the_served_model",
    ".venv/bin/python examples/offline_engine.py": "test_examples.py::test_offline_engine",
    ".venv/bin/glance doctor": "test_a_fresh_clone",
    ".venv/bin/python -m sglang.launch_server": "test_own_target",
    "examples/train_head.sh": "test_examples.py::test_train_head_serves_what_it_trained",
    "make bench": "test_bench",
    "make check test": "test_ci_runs_checks_and_tests",
    "make doctor": "test_doctor",
}


def first_screen() -> str:
    return README.split("\n## ")[0]


def commands() -> list[str]:
    """Of the indented blocks; continued lines are joined, comments cut."""
    blocks = re.findall(r"(?m)^ {4}(.*)$", first_screen())
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [" ".join(line.split(" #")[0].split()) for line in joined.splitlines()]


def printed(first_words: str) -> str:
    (command,) = [c for c in commands() if c.startswith(first_words)]
    return command


def printed_curl(log: str) -> str:
    (curl,) = re.findall(r"(?ms)^ *curl .*?\}'\s*$", log)
    return curl


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``make serve``; not up yet."""
    port, log = free_port(), tmp_path_factory.mktemp("make-serve") / "log"
    with serving(f"{printed('make serve')} PORT={port}", port, log) as server:
        yield server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a head in folders of their own; the weights are float32."""
    folder = tmp_path_factory.mktemp("own")
    target, head = folder / "target", folder / "head"
    shutil.copytree(READER, target)
    shutil.copytree(HEAD, head)
    assert json.loads((target / "config.json").read_text())["dtype"] == "float32"
    return target, head


def of_pair(command: str, pair: tuple[Path, Path]) -> str:
    for placeholder, path in zip(("TARGET", "HEAD"), pair, strict=True):
        assert command.split().count(placeholder) == 1
        command = command.replace(f" {placeholder}", f" {shlex.quote(str(path))}")
    return command


@pytest.fixture(scope="module")
def own(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The README's server of an own target; not up yet."""
    port, log = free_port(), tmp_path_factory.mktemp("own-target") / "log"
    command = of_pair(printed(".venv/bin/python -m sglang.launch_server"), pair)
    with serving(f"{command} --port {port}", port, log) as server:
        yield server


def test_every_command_is_run_here() -> None:
    found = [[w for w in RUN_BY if command.startswith(w)] for command in commands()]
    assert sorted(found) == sorted([w] for w in RUN_BY)
    here = Path(__file__)
    for name in RUN_BY.values():
        file, _, test = name.rpartition("::")
        assert f"\ndef {test}(" in here.with_name(file or here.name).read_text()


def test_it_is_a_screen() -> None:
    assert len(first_screen().splitlines()) <= SCREEN_LINES


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_has_the_target(command: str) -> None:
    typed(command.replace("make ", "make --dry-run ", 1))


def test_debian_packages_are_the_images() -> None:
    """Those that the README names, and the ones that a bare image lacks beside them."""
    named = re.search(r"`apt-get install ([^`]*)`", first_screen())[1].split()
    installed = re.search(
        r"--no-install-recommends \\\n(.*?) \\\n", (ROOT / "Dockerfile").read_text()
    )
    assert set(installed[1].split()) - set(named) == {"ca-certificates", "python3"}
    assert set(named) <= set(installed[1].split())


def test_ci_runs_checks_and_tests() -> None:
    assert printed("make check test") in (ROOT / ".ci" / "run").read_text()


def test_doctor(made: Server, own: Server) -> None:
    """While both servers start."""
    assert "GLANCE can start here" in typed(printed("make doctor"))


def test_serve_and_its_curl(made: Server) -> None:
    wait_until_up(made)
    reply = json.loads(typed(printed_curl(made.log.read_text())))
    assert_read(reply["choices"][0]["message"]["content"])
    assert_reads(made, head=HEAD)


def test_the_client_asks_the_served_model(made: Server) -> None:
    wait_until_up(made)
    given = f"{READER.parent}/pictures/000000-document.png 'Read the document.' {made.url}/v1"
    assert_read(typed(f"{printed('.venv/bin/python examples/openai_client.py')} {given}"))


def test_own_target(own: Server, pair: tuple[Path, Path]) -> None:
    assert_reads(own, head=pair[1])


def test_ctrl_c_ends_the_served_model(made: Server) -> None:
    """The last question to this server: all of its processes end, none has to be killed."""
    wait_until_up(made)
    assert press_ctrl_c(made.process)


@pytest.mark.slow
def test_demo() -> None:
    out = typed(printed("make demo"), timeout_s=600)
    assert json.loads(out.splitlines()[-1])["identical"] is True


@pytest.mark.slow
def test_bench(tmp_path: Path) -> None:
    """Shortened: each question once, in one dtype, by two arms."""
    args = "--dtype float32 --repeats 1 --arms plain glance --max-new-tokens 16"
    args += f" --out {tmp_path / 'out'}"
    typed(f'{printed("make bench")} ARGS="{args}"', timeout_s=800)
    assert (tmp_path / "out" / "run.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_fresh_clone() -> None:
    """Of what is committed: set up, looked over, served and asked; 6 GB, removed again."""
    with tempfile.TemporaryDirectory() as folder:
        clone, port = Path(folder) / "clone", free_port()
        typed(f"git clone --quiet {ROOT} {clone}")
        typed(printed("make setup"), clone, timeout_s=1200)
        doctor = of_pair(printed(".venv/bin/glance doctor"), (READER, HEAD))
        assert "GLANCE can start here" in typed(doctor, clone)
        command = f"{printed('make serve')} PORT={port}"
        with serving(command, port, Path(folder) / "log", clone) as server:
            wait_until_up(server)
            reply = json.loads(typed(printed_curl(server.log.read_text()), clone))
        assert_read(reply["choices"][0]["message"]["content"])
