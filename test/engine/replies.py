"""Whole JSON replies of a GLANCE server beside a plain one's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from builders.apis import Call
from harness import Server

TOLERANCE = 5e-5  # of log-probabilities: see test_logprobs.py
# What differs from one reply to the next, or is reported by a speculative server alone.
IDENTITY = ("id", "rid", "request_id", "response_id", "item_id", "call_id", "previous_response_id")
TIMES = ("created", "created_at", "completed_at", "decode_throughput", "sequence_number")
CLOCKS = ("_ts", "_time", "_latency", "_duration")
# What a prompt finds in the cache depends on those before it.
CACHED = (
    *("cached_tokens", "cached_tokens_details", "cache_read_input_tokens"),
    *("prompt_tokens_details", "input_tokens_details"),
)
GROWING = ("delta", "text", "logprobs")  # parts of a streamed event that go on where it left off
LABELS = ("type", "role", "index", "object")  # within them, what is said again each time


class Reply(NamedTuple):
    """``content``: the JSON less :func:`is_passing` entries; of a stream, :func:`joined`."""

    status: int
    content: Any


def is_passing(key: str) -> bool:
    return key in (*IDENTITY, *TIMES, *CACHED) or key.startswith("spec_") or key.endswith(CLOCKS)


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if not is_passing(key)}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, string, bool and None with the keys that lead to it, without list indices."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}/{key}")
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path, value


def joined(events: list[dict]) -> dict[str, Any]:
    """A streamed reply, however it was cut into events: strings that grow are joined, of everything
    else each new value is kept."""
    out: dict[str, list] = {}
    for event in events:
        for choice in event.get("choices") or [None]:
            part = event if choice is None else {**event, "choices": [choice]}
            kind = event.get("type", "") if choice is None else choice["index"]
            for path, value in leaves(lasting(part), str(kind)):
                values = out.setdefault(path, [])
                if grows(path) or value not in values[-1:]:
                    values.append(value)
    return {path: text_of(values) if grows(path) else values for path, values in out.items()}


def grows(path: str) -> bool:
    keys = path.split("/")
    return keys[-1] not in LABELS and any(key in GROWING for key in keys)


def text_of(values: list) -> Any:
    text = all(value is None or isinstance(value, str) for value in values)
    return "".join(filter(None, values)) if text else values


def send(server: Server, call: Call) -> Reply:
    if call.body is None:
        reply = server.get(call.path)
    else:
        reply = server.session.post(f"{server.url}{call.path}", json=call.body, timeout=300)
    if reply.headers["content-type"].startswith("text/event-stream"):
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        return Reply(reply.status_code, joined(events))
    return Reply(reply.status_code, lasting(reply.json()))


def send_together(server: Server, calls: Sequence[Call]) -> list[Reply]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: send(server, call), calls))


def both(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def differences(ours: Any, plain: Any, path: str = "") -> Iterator[str]:
    if both(dict, ours, plain):
        for key in sorted({*ours, *plain}):
            pair = (side.get(key, "absent") for side in (ours, plain))
            yield from differences(*pair, f"{path}/{key}")
    elif both(list | tuple, ours, plain) and len(ours) == len(plain):
        for place, pair in enumerate(zip(ours, plain, strict=True)):
            yield from differences(*pair, f"{path}/{place}")
    elif both(float, ours, plain):
        if ours != pytest.approx(plain, abs=TOLERANCE):
            yield f"{path}: {ours} not {plain}"
    elif ours != plain:
        yield f"{path}: {ours!r} not {plain!r}"


def assert_same(ours: Any, plain: Any) -> None:
    """Two replies, or lists of them; numbers that are no integers within the tolerance."""
    wrong = list(differences(ours, plain))
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:20])
