"""A real SGLang server over HTTP, started and stopped from Python, and the shipped prompts."""

from __future__ import annotations

import base64
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

import requests

START_TIMEOUT_S = 300
CPU_FLAGS = (
    "--device", "cpu", "--attention-backend", "intel_amx", "--mem-fraction-static", "0.2",
    "--max-total-tokens", "12000", "--max-running-requests", "8", "--skip-server-warmup",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Answer:
    ids: list[int]
    text: str
    meta: dict

    @property
    def rounds(self) -> int:
        return self.meta.get("spec_verify_ct", 0)


@dataclass
class Server:
    """One running server; ``log`` is its combined output."""

    url: str
    process: subprocess.Popen
    log: Path
    session: requests.Session = field(default_factory=requests.Session)

    def generate(self, request: dict, **sampling) -> Answer:
        params = {"temperature": 0, "max_new_tokens": 64, **sampling}
        extra = request.get("extra", {})
        body = {"text": request["text"], "sampling_params": params, **extra}
        if request.get("images"):
            body["image_data"] = request["images"]
        reply = self.session.post(f"{self.url}/generate", json=body, timeout=300)
        reply.raise_for_status()
        out = reply.json()
        return Answer(out["output_ids"], out["text"], out["meta_info"])

    def generate_all(self, prompts: Sequence[dict], parallel: int, **sampling) -> list[Answer]:
        if parallel == 1:
            return [self.generate(prompt, **sampling) for prompt in prompts]
        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, **sampling), prompts))

    def get(self, path: str) -> requests.Response:
        return self.session.get(f"{self.url}{path}", timeout=60)

    def flush_cache(self) -> None:
        for _ in range(50):
            if self.session.post(f"{self.url}/flush_cache", timeout=60).ok:
                return
            time.sleep(0.1)
        raise RuntimeError("the server kept refusing /flush_cache for 5 s")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def serve(
    model: Path,
    log: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    device_flags: Sequence[str] = CPU_FLAGS,
) -> Iterator[Server]:
    """Start a server, wait until it answers, stop it and its children at the end."""
    port = free_port()
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(model),
        "--host", "127.0.0.1", "--port", str(port), *device_flags, *flags,
    ]
    environment = {**os.environ, **(env or {})}
    if "cpu" in device_flags:
        environment = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_up(server)
        yield server
    finally:
        _stop(process)


def _wait_until_up(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(
                f"server exited with {server.process.returncode} while starting:\n{server.tail()}"
            )
        with contextlib.suppress(requests.ConnectionError):
            if server.get("/health").ok:
                return
        time.sleep(0.25)
    raise TimeoutError(f"server not up after {START_TIMEOUT_S} s:\n{server.tail()}")


def _stop(process: subprocess.Popen) -> None:
    """End the process group that :func:`serve` started, which holds the engine's children too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def chat(prompt: str, images: int = 0) -> str:
    """The shipped reader's chat format."""
    vision = "<|vision_start|><|image_pad|><|vision_end|>" * images
    return f"<|im_start|>user\n{vision}{prompt}<|im_end|>\n<|im_start|>assistant\n"


def picture_prompts(folder: Path) -> list[dict]:
    """The shipped pictures with their questions, as ``/generate`` requests."""
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    return [
        {
            "text": chat(row["prompt"], images=1),
            "images": [base64.b64encode((folder / row["image"]).read_bytes()).decode()],
            "task": row["task"],
            "answer": row["answer"],
        }
        for row in rows
    ]
