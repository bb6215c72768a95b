"""A real SGLang server over HTTP, started and stopped from Python."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import requests

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 10
# The pool is bounded by its tokens. The memory fraction only has to be generous: what any other
# process takes while a server loads counts against it.
_CPU_LINE = (
    "--device cpu --attention-backend intel_amx --mem-fraction-static 0.8 --max-total-tokens 12000 "
    "--max-running-requests 8 --skip-server-warmup --sleep-on-idle"
)
CPU_FLAGS = tuple(_CPU_LINE.split())
ONE_MESSAGE = 1 << 20  # a stream interval above any answer: first token, then the rest at the end


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compute_threads() -> dict[str, str]:
    """Half of the cores compute. OpenMP's threads wait for each other by spinning: where one
    shares its core with a client or the engine's other processes, a layer can take ten times as
    long."""
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))}


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
                    raise RuntimeError(f"the server broke off an answer: {out['error']}")
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
        raise RuntimeError("the server kept refusing /flush_cache for 5 s")

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
def serve(
    model: Path,
    log: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    device_flags: Sequence[str] = CPU_FLAGS,
) -> Iterator[Server]:
    """Start a server, wait until it answers, stop it and its children at the end."""
    with starting(model, log, *flags, env=env, device_flags=device_flags) as server:
        wait_until_up(server)
        yield server


@contextlib.contextmanager
def starting(
    model: Path,
    log: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    device_flags: Sequence[str] = CPU_FLAGS,
) -> Iterator[Server]:
    """Start a server and yield before it is up, so that several can start side by side."""
    port = free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *device_flags, *flags]
    environment = {**os.environ, **(env or {})}
    # An engine is three processes that import the same modules: the first keeps the bytecode.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if "cpu" in device_flags:
        environment = {"SGLANG_USE_CPU_ENGINE": "1", **compute_threads(), **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        yield Server(f"http://127.0.0.1:{port}", process, log)
    finally:
        stop(process)


def wait_until_up(server: Server, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(
                f"server exited with {server.process.returncode} while starting:\n{server.tail()}"
            )
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            if server.get("/health").ok:
                return
        time.sleep(0.25)
    raise TimeoutError(f"server not up after {timeout_s:.0f} s:\n{server.tail()}")


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


@contextlib.contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit that runs ``finally`` blocks, so servers stop too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {name: signal.signal(name, leave) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
