"""Mixed random requests, each a function of a seed alone, and what became of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import requests
from builders.pictures import encode, form, shapes
from builders.prompts import chat
from sglang.glance.serving.server import Answer, Server

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
WORDS = ("Total", "Name", "Count", "red", "blue", "circle", "lines", "Order:", "7", "12", "month")
INVALID = (
    {"sampling_params": {"temperature": -1}},
    {"sampling_params": {"top_p": 2}},
    {"sampling_params": {"max_new_tokens": -4}},
    {"sampling_params": {"regex": "("}},
    {"image_data": ["data:image/png;base64,AAAA"], "text": chat("Read.", images=1)},
    {"text": 5},
    {"input_ids": [99999]},
    {"text": chat("word " * 5000)},
)
TIMEOUT_S = 120


@dataclass(frozen=True)
class Ask:
    """One request of a wave. ``end``: how the client takes its answer (whole, stream, abort,
    hang up, or an error that is due); ``chunks``: messages read before an abort or a hang-up."""

    kind: str
    request: dict
    sampling: dict = field(default_factory=dict)
    end: str = "whole"
    chunks: int = 0
    delay_s: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.end != "refused" and self.sampling.get("temperature", 0) == 0


@dataclass
class Outcome:
    """``ids``: of every answer to the request, as far as they came."""

    ask: Ask
    ids: list[list[int]] = field(default_factory=list)
    text: str = ""
    ended: str = ""
    logprobs: list[list[float]] = field(default_factory=list)
    retractions: int = 0
    error: str = ""


def wave(seed: int, size: int, longest: int = 100) -> list[Ask]:
    rng = random.Random(seed)
    return [_ask(rng, longest) for _ in range(size)]


def _request(rng: random.Random) -> dict:
    # Few pictures and few questions: prefixes are met again, in part and whole.
    number = rng.randrange(12)
    if rng.random() < 0.5:
        text = " ".join(rng.choices(WORDS, k=rng.randrange(1, 40)))
        return {"text": chat(text)}
    pictures = [encode(form(number))]
    if rng.random() < 0.2:
        pictures.append(encode(shapes(number, (96, 64))))
    prompt = rng.choice(("Read all lines.", "Describe the image.", "What is the Total?"))
    return {"text": chat(prompt, images=len(pictures)), "images": pictures}


def _controls(rng: random.Random) -> tuple[str, dict]:
    """What is asked of the sampler."""
    drawn = {"temperature": rng.choice((0.5, 1.0, 1.5))}
    return rng.choice(
        (
            ("plain", {}),
            ("plain", {"ignore_eos": True}),
            ("plain", {"ignore_eos": True}),
            ("stop", {"stop": [rng.choice(("\n", "e", "12", "Total"))]}),
            ("stop token", {"stop_token_ids": [rng.randrange(500)], "ignore_eos": True}),
            ("penalty", {"frequency_penalty": 0.7, "ignore_eos": True}),
            ("penalty", {"repetition_penalty": 1.3}),
            ("bias", {"logit_bias": {str(rng.randrange(500)): 4.0}}),
            ("minimum", {"min_new_tokens": 8}),
            ("schema", {"json_schema": SCHEMA}),
            ("regex", {"regex": "[A-Z]{2}-[0-9]{3,6}"}),
            ("two", {"n": 2}),
            ("logprobs", {"ignore_eos": True}),
            ("drawn", {**drawn, "top_p": 0.9}),
            ("drawn", {**drawn, "top_k": 5, "ignore_eos": True}),
            ("drawn", {**drawn, "min_p": 0.1, "presence_penalty": 0.5}),
            ("seeded", {**drawn, "sampling_seed": rng.randrange(1000)}),
        )
    )


def _ask(rng: random.Random, longest: int) -> Ask:
    delay = rng.random() * 0.6
    if rng.random() < 0.06:
        bad = rng.choice(INVALID)
        return Ask("invalid", dict(bad), end="refused", delay_s=delay)
    request = _request(rng)
    kind, sampling = _controls(rng)
    sampling["max_new_tokens"] = rng.choice((1, 2, 7, 16, 17, 40, longest))
    if kind == "minimum":
        sampling["max_new_tokens"] = max(8, sampling["max_new_tokens"])
    if kind == "logprobs":
        request["extra"] = {"return_logprob": True, "top_logprobs_num": 2}
    ends = ("whole", "whole", "stream", "stream", "abort", "hang up")
    end = "whole" if kind in ("two", "logprobs") else rng.choice(ends)
    if end == "abort":
        request["extra"] = {"rid": f"soak-{rng.getrandbits(64):x}"}
    return Ask(kind, request, sampling, end, rng.randrange(1, 5), delay)


def send(server: Server, ask: Ask, replay: bool = False) -> Outcome:
    """Ask and take the answer as the request says; ``replay``: whole, at once, for comparison."""
    if not replay:
        time.sleep(ask.delay_s)
    out = Outcome(ask)
    try:
        _TAKEN["whole" if replay and ask.end != "refused" else ask.end](server, ask, out)
    except (requests.RequestException, RuntimeError, KeyError, ValueError) as error:
        out.error = f"{type(error).__name__}: {str(error)[:600]}"
    return out


def _body(ask: Ask, **more: object) -> dict:
    params = {"temperature": 0, "max_new_tokens": 16, **ask.sampling}
    body = {"text": ask.request.get("text"), "sampling_params": params, **more}
    if ask.request.get("images"):
        pictures = ask.request["images"]
        # With n above 1, and only then, a list is read as a prompt's pictures each.
        body["image_data"] = [pictures] if params.get("n", 1) > 1 else pictures
    return body | ask.request.get("extra", {})


def _whole(server: Server, ask: Ask, out: Outcome) -> None:
    # Its own connection: sessions are not shared by threads that may break off.
    reply = requests.post(f"{server.url}/generate", json=_body(ask), timeout=TIMEOUT_S)
    if not reply.ok:
        raise RuntimeError(f"/generate answered {reply.status_code}: {reply.text[:300]}")
    answers = reply.json()
    for answer in answers if isinstance(answers, list) else [answers]:
        meta = answer["meta_info"]
        out.ids.append(answer["output_ids"])
        out.text, out.ended = answer["text"], meta["finish_reason"]["type"]
        out.retractions += meta.get("num_retractions", 0)
        if "output_token_logprobs" in meta:
            out.logprobs.append([entry[0] for entry in meta["output_token_logprobs"]])


def _stream(server: Server, ask: Ask, out: Outcome, then: Callable | None = None) -> None:
    request = {"text": ask.request["text"], **ask.request}
    own = Server(server.url, server.process, server.log)
    stream = own.stream(request, **ask.sampling)
    last: Answer | None = None
    for number, answer in enumerate(stream, 1):
        if last is not None and not answer.text.startswith(last.text):
            raise RuntimeError(f"the stream took text back: {last.text!r} then {answer.text!r}")
        last = answer
        if then is not None and number == ask.chunks and not answer.meta["finish_reason"]:
            then(own, stream)
            if ask.end == "hang up":
                out.ended = "hung up"
                break
    if last is None:
        raise RuntimeError("the stream held no message")
    out.ids, out.text = [last.ids], last.text
    out.ended = out.ended or last.meta["finish_reason"]["type"]


def _abort(server: Server, ask: Ask, out: Outcome) -> None:
    rid = ask.request["extra"]["rid"]

    def abort(own: Server, stream: object) -> None:
        requests.post(f"{own.url}/abort_request", json={"rid": rid}, timeout=60)

    _stream(server, ask, out, abort)


def _hang_up(server: Server, ask: Ask, out: Outcome) -> None:
    _stream(server, ask, out, lambda own, stream: stream.close())


def _refused(server: Server, ask: Ask, out: Outcome) -> None:
    reply = requests.post(f"{server.url}/generate", json=ask.request, timeout=TIMEOUT_S)
    if not 400 <= reply.status_code < 500:
        raise RuntimeError(f"expected HTTP 4xx, got {reply.status_code}: {reply.text[:300]}")
    out.ended = "refused"


_TAKEN = {
    "whole": _whole,
    "stream": _stream,
    "abort": _abort,
    "hang up": _hang_up,
    "refused": _refused,
}


def differences(got: Outcome, plain: Outcome) -> list[str]:
    """What is wrong with one answer, given plain decoding's whole answer to the same request."""
    if got.error or plain.error:
        return [f"{side}: {each.error}" for side, each in _sides(got, plain) if each.error]
    if got.ask.end == "refused":
        return []
    broken_off = got.ended in ("abort", "hung up")
    limit = got.ask.sampling["max_new_tokens"]
    wrong = [f"{len(ids)} tokens, {limit} allowed" for ids in got.ids if len(ids) > limit]
    if not got.ask.greedy:
        return wrong
    for ours, theirs in zip(got.ids, plain.ids, strict=True):
        if ours != (theirs[: len(ours)] if broken_off else theirs):
            wrong.append(f"ids {ours} not {theirs}")
    if not broken_off and not wrong:
        if (got.text, got.ended) != (plain.text, plain.ended):
            wrong.append(f"{got.text!r} ({got.ended}) not {plain.text!r} ({plain.ended})")
        for ours, theirs in zip(got.logprobs, plain.logprobs, strict=True):
            far = max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
            if far > 1e-3:
                wrong.append(f"a log-probability is {far:.2g} off")
    return wrong


def _sides(got: Outcome, plain: Outcome) -> list[tuple[str, Outcome]]:
    return [("GLANCE", got), ("plain", plain)]
