"""What the engine tests start and compare: real servers on a CPU, and plain decoding's answers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import requests as http
from builders.floors import reached
from builders.prompts import chat, picture_prompts
from sglang.glance.serving.server import Answer, Server, starting, wait_until_up
from sglang.glance.shipped import HEAD, PICTURES, READER

GLANCE = ("--speculative-algorithm", "GLANCE", "--speculative-draft-model-path", str(HEAD))
# Under overlap scheduling, its default, plain decoding's penalties count each token a step late.
PLAIN = ("--dtype", "float32", "--disable-overlap-schedule")
FLAGS = ("--enable-metrics", "--decode-log-interval", "1")
# SGLang compares free + cached + running slots with the pool's size in every step and when idle,
# and looks for pages that are owned twice; a mismatch ends the server.
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
SMALL_POOL = 1280  # tokens

__all__ = [
    "GLANCE",
    "HEAD",
    "PICTURES",
    "PLAIN",
    "READER",
    "SMALL_POOL",
    "Answer",
    "Ask",
    "Folders",
    "Plain",
    "Rounds",
    "Server",
    "Started",
    "ask_together",
    "assert_identical",
    "assert_no_slot_lost",
    "booting",
    "chat",
    "chat_body",
    "glance_flags",
    "head_hash",
    "picture_prompts",
    "post",
    "start",
    "tokens_per_round",
    "wait_until_up",
    "whole_chat",
]


@contextlib.contextmanager
def booting(
    model: Path, log: Path, *flags: str, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server that checks its own KV pool, with metrics and one log line a decode step; it is
    not up yet, so that another can start beside it."""
    with starting(model, log, *FLAGS, *flags, env={**STRICT, **(env or {})}) as server:
        yield server


@contextlib.contextmanager
def start(
    model: Path, log: Path, *flags: str, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A :func:`booting` one, once it is up."""
    with booting(model, log, *flags, env=env) as server:
        wait_until_up(server)
        yield server


def glance_flags(head: Path = HEAD, dtype: str = "float32", **flags: object) -> list[str]:
    """Flags of a GLANCE server: ``budget=8`` and so on, by the names used in these tests."""
    names = {
        "budget": "--speculative-num-draft-tokens",
        "block": "--speculative-dflash-block-size",
        "topk": "--speculative-eagle-topk",
        "page": "--page-size",
        "chunk": "--chunked-prefill-size",
        "tokens": "--max-total-tokens",
    }
    out = ["--dtype", dtype, *GLANCE[:2], "--speculative-draft-model-path", str(head)]
    for name, value in flags.items():
        out += [names[name], str(value)]
    return out


def chat_body(question: dict, prompt: str, **more: object) -> dict:
    """Of ``/v1/chat/completions``: ``prompt`` about the question's picture, greedily."""
    content = [
        {"type": "image_url", "image_url": {"url": question["images"][0]}},
        {"type": "text", "text": prompt},
    ]
    message = {"role": "user", "content": content}
    return {"model": "reader", "messages": [message], "temperature": 0, "max_tokens": 64, **more}


def whole_chat(server: Server, body: dict) -> dict:
    return server.session.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()


def post(server: Server, path: str, status: int = 200, **body: object) -> dict | str:
    """The reply, which must have this status; its JSON, where it is JSON."""
    reply = http.post(f"{server.url}{path}", json=body, timeout=60)
    assert reply.status_code == status, f"{path}: {reply.status_code} {reply.text[:500]}"
    is_json = "json" in reply.headers.get("content-type", "")
    return reply.json() if is_json else reply.text


class Folders(NamedTuple):
    """Checkpoints of the reader's sizes."""

    other: Path
    renamed: Path


class Started(NamedTuple):
    """A server that was started with other weights, what it answered then, and its head's hash."""

    server: Server
    before: list[Answer]
    head: str


def head_hash(server: Server) -> str:
    return post(server, "/weights_checker", selector="draft")["per_engine_checksum"]


class Plain:
    """Plain decoding's answers; no question is asked twice. ``booting``: its server."""

    def __init__(self, booting: Server) -> None:
        self._booting: Server | None = booting
        self._server = booting
        self._answers: dict[str, Answer] = {}

    @property
    def server(self) -> Server:
        """Waited for when first asked."""
        if self._booting is not None:
            wait_until_up(self._booting)
            self._booting = None
        return self._server

    def answer(self, request: dict, **sampling: object) -> Answer:
        asked = [request.get(part) for part in ("text", "images", "extra")]
        key = json.dumps([*asked, sampling], sort_keys=True)
        if key not in self._answers:
            self._answers[key] = self.server.generate(request, **sampling)
        return self._answers[key]

    def answers(self, requests: Iterable[dict], **sampling: object) -> list[Answer]:
        return [self.answer(request, **sampling) for request in requests]

    def answers_to(self, asks: Iterable[Ask]) -> list[Answer]:
        return [self.answer(request, **sampling) for request, sampling in asks]


Ask = tuple[dict, dict]  # a request and its own sampling parameters


def ask_together(server: Server, asks: Sequence[Ask]) -> list[Answer]:
    """All at once, so that they share batches as far as the server's limit allows."""
    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(lambda ask: server.generate(ask[0], **ask[1]), asks))


def assert_identical(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Ids, text, finish reason and token counts of two lists of answers are the same."""
    assert len(got) == len(expected)
    wrong = []
    for number, (ours, plain) in enumerate(zip(got, expected, strict=True)):
        if ours.ids != plain.ids:
            pairs = zip([*ours.ids, None], [*plain.ids, None])
            at = next(i for i, (a, b) in enumerate(pairs) if a != b)
            wrong.append(f"#{number} departs at token {at}: {ours.ids[at:]} not {plain.ids[at:]}")
        elif ours.text != plain.text:
            wrong.append(f"#{number} text {ours.text!r} not {plain.text!r}")
        for key in ("finish_reason", "completion_tokens", "prompt_tokens"):
            if ours.meta[key] != plain.meta[key]:
                wrong.append(f"#{number} {key} {ours.meta[key]} not {plain.meta[key]}")
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong)


def assert_no_slot_lost(server: Server) -> None:
    """Free + cached slots = the pool, once the server is idle (before any flush)."""
    deadline = time.monotonic() + 10
    while True:
        (load,) = server.get("/v1/loads").json()["loads"]
        if load["num_running_reqs"] + load["num_waiting_reqs"] + load["num_used_tokens"] == 0:
            break
        assert time.monotonic() < deadline, f"slots still in use on an idle server: {load}"
        time.sleep(0.2)
    server.flush_cache()
    assert server.process.poll() is None, server.tail()
    assert "leak detected" not in server.log.read_text(errors="replace").lower(), server.tail()


def tokens_per_round(answers: Sequence[Answer]) -> float:
    """Tokens a verify round yields, pooled: a request's first token comes from its prefill."""
    tokens = sum(len(a.ids) - 1 for a in answers)
    return reached("tokens a round", tokens / sum(a.rounds for a in answers))


@dataclass
class Rounds:
    """The worker's own record of its rounds, read as it grows."""

    path: Path
    offset: int = 0

    def lines(self) -> list[dict]:
        """Rounds since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            lines = file.readlines()
            self.offset = file.tell()
        return [json.loads(line) for line in lines]

    def new(self) -> list[list[int]]:
        """Their ``accept_lens``."""
        return [line["accept_lens"] for line in self.lines()]
