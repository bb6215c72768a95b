"""Starting and stopping: no process of a server's group outlives its ``with`` block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from sglang.glance.cli.failures import Failed, Unanswered
from sglang.glance.cli.signals import unwind_on_signals
from sglang.glance.serving import server as server_module
from sglang.glance.serving.server import Server, log_folder, reason, starting, stop, wait_until_up

# A leader with a child in its group. Both write their ids; ``polite`` decides what SIGINT does.
FAKE = """
import os, signal, subprocess, sys, time
polite = sys.argv[2] == "polite"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# Said outright: a shell starts its background jobs with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler if polite else signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}\\n")
try:
    time.sleep(60)
except KeyboardInterrupt:
    child.kill()
    child.wait()
    sys.exit(0)
"""


def alive(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie (its parent has not looked yet) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def written(path: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline, "the fake server did not start"
        time.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


def start_fake(path: Path, manners: str) -> tuple[subprocess.Popen, list[int]]:
    command = [sys.executable, "-c", FAKE, str(path), manners]
    process = subprocess.Popen(command, start_new_session=True)
    return process, written(path)


def test_stop_lets_the_leader_end_in_order(tmp_path: Path) -> None:
    process, pids = start_fake(tmp_path / "pids", "polite")
    stop(process)
    assert process.returncode == 0
    assert gone(pids)


def test_stop_kills_a_group_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.2)
    process, pids = start_fake(tmp_path / "pids", "deaf")
    stop(process)
    assert process.returncode == -signal.SIGKILL
    assert gone(pids)


def test_stop_kills_the_group_when_its_wait_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, pids = start_fake(tmp_path / "pids", "deaf")
    wait = process.wait

    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stop(process)
    assert gone(pids)


def test_stop_of_an_ended_leader_still_kills_its_children(tmp_path: Path) -> None:
    process, pids = start_fake(tmp_path / "pids", "deaf")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert alive(pids[1])
    stop(process)
    assert gone(pids)


def test_a_server_stops_when_its_block_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, out = subprocess.Popen, tmp_path / "pids"
    monkeypatch.setattr(
        server_module.subprocess,
        "Popen",
        lambda command, **rest: popen([sys.executable, "-c", FAKE, str(out), "polite"], **rest),
    )
    with pytest.raises(KeyError), starting(tmp_path, tmp_path / "log"):
        pids = written(out)
        raise KeyError
    assert gone(pids)


def test_a_server_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no such model\n")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    with pytest.raises(Failed, match=rf"ended .*code 3(.|\n)*no such model(.|\n)*{log}"):
        wait_until_up(Server("http://127.0.0.1:1", process, log))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("[12:00] GLANCE: block=16\nGLANCE: --tp-size: got 2\n", "GLANCE: --tp-size: got 2"),
        ("  raise\nValueError: got 2\n[12:00] Received sigquit\n", "ValueError: got 2"),
        ("KeyError: 'x'\na.b.OtherError: no kernel\n", "a.b.OtherError: no kernel"),
        ("AssertionError\n", "AssertionError"),
        ("one\n\ntwo\nkilled\n", "its log ends:\none\ntwo\nkilled"),
    ],
)
def test_the_reason_of_an_end_is_found_in_its_log(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / "log").write_text(log)
    assert reason(tmp_path / "log") == said


def test_a_server_that_dies_while_it_is_asked_is_named(tmp_path: Path, stub: dict) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(Failed, match="ended while it was asked .code -9.*its log ends") as told,
        starting(tmp_path, log, env=stub, device="cpu") as server,
    ):
        written(tmp_path / "pids")
        server.process.kill()
        raise Unanswered("no answer")
    assert str(log) in str(told.value)


def test_logs_stay_where_a_command_failed() -> None:
    with log_folder("test") as fine:
        (fine / "log").touch()
    with pytest.raises(KeyError), log_folder("test") as failed:
        raise KeyError
    assert not fine.exists() and failed.is_dir()
    failed.rmdir()


# `python -m sglang.launch_server` of a tree of processes, none of which ends when asked.
STUB = """
import os, signal, subprocess, sys, time
for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
depth = int(os.environ.get("DEPTH", 0))
if depth < 2:
    deeper = {**os.environ, "DEPTH": str(depth + 1)}
    subprocess.Popen([sys.executable, "-m", "sglang.launch_server"], env=deeper)
with open(os.environ["PIDS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """An environment in which SGLang is :data:`STUB`; ids of its three processes go to ``pids``."""
    package = tmp_path / "stub" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(STUB)
    return {"PYTHONPATH": str(package.parent), "PIDS": str(tmp_path / "pids")}


def all_written(path: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while len(pids := written(path)) < 3:
        assert time.monotonic() < deadline, f"{len(pids)} of 3 processes started"
        time.sleep(0.01)
    return pids


PARENT = """
import sys, time, sglang_glance
from pathlib import Path
sglang_glance.extend_host_path()
from sglang.glance.serving.server import starting
with starting(Path("model"), Path(sys.argv[1]), device="cpu"):
    time.sleep(60)
"""


def test_no_server_outlives_a_killed_parent(tmp_path: Path, stub: dict[str, str]) -> None:
    """kill -9, which nobody can catch: the server's children and theirs end too."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(command, env={**os.environ, **stub})
    pids = all_written(tmp_path / "pids")
    assert all(map(alive, pids)) and parent.poll() is None
    parent.kill()
    parent.wait()
    assert gone(pids)


def test_a_server_outlives_the_thread_that_started_it(
    tmp_path: Path, stub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 0.2)
    with contextlib.ExitStack() as stack:
        start = starting(tmp_path, tmp_path / "log", env=stub, device="cpu")
        thread = threading.Thread(target=lambda: stack.enter_context(start))
        thread.start()
        thread.join()
        pids = all_written(tmp_path / "pids")
        time.sleep(0.2)
        assert all(map(alive, pids))
    assert gone(pids)


def test_a_server_that_never_answers_times_out(tmp_path: Path) -> None:
    process, pids = start_fake(tmp_path / "pids", "polite")
    (tmp_path / "log").write_text("still loading\n")
    try:
        with pytest.raises(Failed, match="still loading"):
            wait_until_up(Server("http://127.0.0.1:1", process, tmp_path / "log"), timeout_s=0.3)
    finally:
        stop(process)
    assert gone(pids)


def test_a_busy_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took the connection and had no time to answer: others start beside it."""
    process, pids = start_fake(tmp_path / "pids", "polite")
    replies = iter([requests.ReadTimeout, requests.ConnectionError, None])

    def get(server: Server, path: str) -> SimpleNamespace:
        problem = next(replies)
        if problem:
            raise problem
        return SimpleNamespace(ok=True)

    monkeypatch.setattr(Server, "get", get)
    try:
        wait_until_up(Server("http://127.0.0.1:1", process, tmp_path / "log"))
    finally:
        stop(process)
    assert next(replies, "all asked") == "all asked"
    assert gone(pids)


def test_sigterm_unwinds_the_stack() -> None:
    cleaned = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left, unwind_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            cleaned.append(True)
    assert left.value.code == 128 + signal.SIGTERM
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before
