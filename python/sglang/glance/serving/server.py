"""A real SGLang server over HTTP, started and stopped from Python."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import requests
from sglang.glance.cli.failures import Failed, Unanswered
from sglang.glance.serving import leash
from sglang.glance.serving.flags import environment, short_lived, this_device

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 10
# What a launcher says last: GLANCE's refusal, or the line of an exception.
LAST_WORDS = re.compile(r"^(?:GLANCE\b.*|(?:\w+\.)*\w*(?:Error|Exception|Exit)(?:: .+)?)$")
ONE_MESSAGE = 1 << 20  # a stream interval above any answer: first token, then the rest at the end


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_connection_each() -> requests.Session:
    """A session that reuses no connection: the server closes an idle one after some seconds, and a
    request sent at that moment is reset."""
    session = requests.Session()
    session.headers["Connection"] = "close"
    return session


@dataclass
class Answer:
    """``first_s``, ``total_s``: from sending to the first and to the last token, as the client
    sees them; 0 unless the answer was streamed."""

    ids: list[int]
    text: str
    meta: dict
    first_s: float = 0.0
    total_s: float = 0.0

    @property
    def rounds(self) -> int:
        return self.meta.get("spec_verify_ct", 0)


@dataclass
class Server:
    """One running server; ``log`` is its combined output."""

    url: str
    process: subprocess.Popen
    log: Path
    session: requests.Session = field(default_factory=one_connection_each)

    def generate(self, request: dict, **sampling) -> Answer:
        with self._post(request, sampling, stream=False) as reply:
            out = reply.json()
        return Answer(out["output_ids"], out["text"], out["meta_info"])

    def stream(self, request: dict, **sampling) -> Iterator[Answer]:
        """The answer as it grows: one :class:`Answer` a message, each with all of it so far."""
        sent = time.perf_counter()
        first_s = None
        with self._post(request, sampling, stream=True) as reply:
            for line in reply.iter_lines():
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                now = time.perf_counter() - sent
                first_s = now if first_s is None else first_s
                out = json.loads(line[6:])
                if "error" in out:
                    raise Failed(f"the server broke off an answer: {out['error']}")
                yield Answer(out["output_ids"], out["text"], out["meta_info"], first_s, now)

    def timed(self, request: dict, **sampling) -> Answer:
        """One answer in two messages: the prefill's token, and everything after it."""
        *_, answer = self.stream(request, stream_interval=ONE_MESSAGE, **sampling)
        return answer

    def generate_all(self, prompts: Sequence[dict], parallel: int, **sampling) -> list[Answer]:
        if parallel == 1:
            return [self.generate(prompt, **sampling) for prompt in prompts]
        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, **sampling), prompts))

    def get(self, path: str) -> requests.Response:
        return self.session.get(f"{self.url}{path}", timeout=60)

    def flush_cache(self) -> None:
        """Forget every cached prefix. Refused for a moment after an answer, hence the retries."""
        for _ in range(50):
            if self.session.post(f"{self.url}/flush_cache", timeout=60).ok:
                return
            time.sleep(0.1)
        raise Failed("the server kept refusing /flush_cache for 5 s")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _post(self, request: dict, sampling: dict, stream: bool) -> requests.Response:
        params = {"temperature": 0, "max_new_tokens": 64, **sampling}
        body = {"text": request["text"], "sampling_params": params, "stream": stream}
        if request.get("images"):
            body["image_data"] = request["images"]
        body |= request.get("extra", {})
        try:
            reply = self.session.post(f"{self.url}/generate", json=body, stream=stream, timeout=300)
        except requests.ConnectionError as error:
            raise requests.ConnectionError(f"{error}; its log ends:\n{self.tail()}") from error
        if not reply.ok:
            raise requests.HTTPError(
                f"/generate answered {reply.status_code}: {reply.text[:500]}", response=reply
            )
        return reply


@contextlib.contextmanager
def log_folder(command: str) -> Iterator[Path]:
    """A folder for the logs of a command's servers, kept where the command fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"glance-{command}-"))
    kept = False
    try:
        yield folder
    except Exception:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serve(
    model: Path,
    log: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    device: str | None = None,
    context: int | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it answers, stop it and its children at the end."""
    with starting(model, log, *flags, env=env, device=device, context=context) as server:
        wait_until_up(server)
        yield server


@contextlib.contextmanager
def starting(
    model: Path,
    log: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    device: str | None = None,
    context: int | None = None,
) -> Iterator[Server]:
    """Start a server and yield before it is up, so that several can start side by side.

    ``device``: this machine's, where not given; ``context``: the longest request, in tokens. The
    server ends with this process, however this process ends (:mod:`sglang.glance.serving.leash`).
    """
    port, device = free_port(), device or this_device()
    command = [sys.executable, "-I", "-S", leash.__file__, sys.executable]
    command += ["-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += short_lived(device, context, flags)
    variables = {**environment(device, flags), **os.environ, **(env or {})}
    # An engine is three processes that import the same modules: the first keeps the bytecode.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        yield server
    except (requests.ConnectionError, Unanswered) as error:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)  # its connection closes before the process has ended
            raise ended(server, "while it was asked") from error
        raise
    finally:
        stop(process)
        process.stdin.close()


def wait_until_up(server: Server, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise ended(server, "while starting")
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            if server.get("/health").ok:
                return
        time.sleep(0.25)
    raise Failed(
        f"a server was not up after {timeout_s:.0f} s; its log, {server.log}, ends:\n"
        f"{server.tail(3)}"
    )


def ended(server: Server, when: str) -> Failed:
    """Why a server ended: the last exception that its log names, or its last lines."""
    code, log = server.process.returncode, server.log
    return Failed(f"a server ended {when} (code {code}): {reason(log)}\nits log: {log}")


def reason(log: Path) -> str:
    """A refusal, or the last exception, or the last lines."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if LAST_WORDS.match(line)]
    return named[-1] if named else "its log ends:\n" + "\n".join(lines[-5:])


def stop(process: subprocess.Popen) -> None:
    """End the process group that :func:`starting` made, which holds the engine's children too.

    SIGINT to the leader alone lets it end its children in order; a signal to the children first
    reads as a crash there and costs seconds of diagnostics. Whatever is left is killed, also when
    the wait itself is interrupted.
    """
    try:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
