"""Starting and stopping: no process of a server's group outlives its ``with`` block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from sglang.glance import server as server_module
from sglang.glance.server import Server, starting, stop, unwind_on_signals, wait_until_up

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
    with pytest.raises(RuntimeError, match=r"exited with 3(.|\n)*no such model"):
        wait_until_up(Server("http://127.0.0.1:1", process, log))


def test_a_server_that_never_answers_times_out(tmp_path: Path) -> None:
    process, pids = start_fake(tmp_path / "pids", "polite")
    (tmp_path / "log").write_text("still loading\n")
    try:
        with pytest.raises(TimeoutError, match="still loading"):
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
