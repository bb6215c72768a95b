"""What a newcomer does: types commands into a shell in a clone of this repository."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from harness import PICTURES, Server, chat_body, picture_prompts, wait_until_up, whole_chat

ROOT = Path(__file__).resolve().parents[2]
INTERRUPT_TIMEOUT_S = 60
# Variables that `make test` or a developer has set, and that would change what a command does.
FOREIGN = ("MAKE", "MFLAGS", "ARGS", "PORT", "DEVICE", "VENV", "SGLANG_", "OMP_", "PYTEST")


def environment() -> dict[str, str]:
    """This process's own, without what a newcomer's shell does not have."""
    foreign = (*FOREIGN, "PYTHONDONTWRITEBYTECODE", "TRITON_INTERPRET")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def typed(command: str, folder: Path = ROOT, timeout_s: float = 300) -> str:
    """Output of a command that ends by itself and succeeds."""
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout[-3000:]}"
    return ran.stdout


@contextlib.contextmanager
def serving(command: str, port: int, log: Path, folder: Path = ROOT) -> Iterator[Server]:
    """A command that becomes a server at ``port``; it is not up yet. Ctrl-C ends it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            # A shell without job control, CI's for one, has its children ignore Ctrl-C.
            ["env", "--default-signal=INT", "bash", "-c", command],
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Server(f"http://127.0.0.1:{port}", process, log)
    finally:
        press_ctrl_c(process)


def press_ctrl_c(process: subprocess.Popen) -> bool:
    """As a terminal does: every process of the group gets it. What is left after a while is killed;
    returns whether that was nothing."""
    deadline = time.monotonic() + INTERRUPT_TIMEOUT_S
    try:
        reached = signal_group(process, signal.SIGINT)
        while reached and time.monotonic() < deadline:
            process.poll()  # a leader that has ended is in its group until it is waited for
            reached = signal_group(process, 0)
            time.sleep(0.1)
    finally:
        left = signal_group(process, signal.SIGKILL)
        process.wait()
    return not left


def signal_group(process: subprocess.Popen, number: int) -> bool:
    """Whether anybody was there to get it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def document() -> dict:
    """The shipped question that the printed commands and the examples ask."""
    rows = map(json.loads, (PICTURES / "prompts.jsonl").read_text().splitlines())
    (at,) = [n for n, row in enumerate(rows) if row["image"] == "000000-document.png"]
    return picture_prompts(PICTURES)[at]


def assert_read(answer: str) -> None:
    """It holds all that is to be read in that document."""
    missing = [value for value in document()["values"] if value not in answer]
    assert not missing, f"{missing} not in {answer!r}"


def assert_reads(server: Server, head: Path) -> None:
    """The server is up, drafts with ``head`` and reads a shipped picture."""
    wait_until_up(server)
    served = server.get("/server_info").json()
    assert served["speculative_algorithm"] == "GLANCE"
    assert Path(served["speculative_draft_model_path"]) == head
    answer = whole_chat(server, chat_body(document(), "Read the document."))
    assert_read(answer["choices"][0]["message"]["content"])
