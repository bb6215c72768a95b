"""Features of a request, by the names of docs/losslessness.md, and how one is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import requests as http
from builders.prompts import chat
from builders.sampled import ask as ask_for
from builders.shipped import token
from harness import Answer, Server, assert_identical
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

SCHEMA = '{"type": "string", "maxLength": 60}'  # its own words in quotes: it knows no JSON
REGEX = r"([A-Z][A-Za-z]+: [A-Z0-9.\-]+\n?){1,6}"
EBNF = 'root ::= line ("\\n" line)*\nline ::= [A-Z][A-Za-z]+ ": " [A-Z0-9.-]+'


@dataclass(frozen=True)
class Feature:
    """Sampling parameters and fields of the request beside them; a greedy answer of 24 tokens."""

    sampling: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    streamed: bool = False


FEATURES = {
    "greedy": Feature(),
    "temperature, top-p, top-k, min-p": Feature(
        {"temperature": 0.5, "top_p": 1e-6, "top_k": 20, "min_p": 0.1}
    ),
    "logit bias": Feature({"logit_bias": {str(token("1")): 3.0, str(token("2")): -2.0}}),
    "repetition penalty": Feature({"repetition_penalty": 1.3}),
    "presence penalty": Feature({"presence_penalty": 0.4}),
    "frequency penalty": Feature({"frequency_penalty": 0.4}),
    "min_new_tokens": Feature({"min_new_tokens": 20, "ignore_eos": False}),
    "JSON schema": Feature({"json_schema": SCHEMA, "ignore_eos": False}),
    "regex": Feature({"regex": REGEX, "ignore_eos": False}),
    "grammar and ignore_eos": Feature({"regex": REGEX}),
    "EBNF": Feature({"ebnf": EBNF, "ignore_eos": False}),
    "output and top log-probabilities": Feature(
        {}, {"return_logprob": True, "top_logprobs_num": 3}
    ),
    "prompt log-probabilities": Feature({}, {"return_logprob": True, "logprob_start_len": 0}),
    "end of text": Feature({"ignore_eos": False, "max_new_tokens": 64}),
    "stop string": Feature({"stop": ["0", "bo"]}),
    "stop token": Feature({"stop_token_ids": [token(digit) for digit in "012"]}),
    "max_new_tokens": Feature({"max_new_tokens": 9}),
    "n = 2": Feature({"n": 2}),
    "streaming": Feature(streamed=True),
    "custom logit processor": Feature(
        {"custom_params": {"token_ids": [token("."), token(" large")]}},
        {"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()},
    ),
    "return_hidden_states": Feature({}, {"return_hidden_states": True}),
}


def requests_of(kind: str, questions: list[dict]) -> list[dict]:
    texts = [{"text": chat("Name: PARIS\nTotal: 12.50\nRead all lines.")}, {"text": chat("Hello.")}]
    images = [questions[0], questions[14]]
    return {"text": texts, "image": images, "mixed batch": [*texts, *images]}[kind]


def ask(server: Server, request: dict, feature: Feature) -> list[Answer]:
    request = {**request, "extra": feature.extra}
    sampling = {"max_new_tokens": 24, "ignore_eos": True, **feature.sampling}
    if feature.streamed:
        *_, answer = server.stream(request, **sampling)
        return [answer]
    if "n" not in sampling:
        return [server.generate(request, **sampling)]
    replies = ask_for(server, request, sampling.pop("n"), {"temperature": 0, **sampling})
    return [Answer(out["output_ids"], out["text"], out["meta_info"]) for out in replies]


class Expected:
    """Plain decoding's answers; no question is asked twice."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, list[Answer]] = {}

    def __call__(self, request: dict, feature: Feature) -> list[Answer]:
        key = repr((request, feature))
        if key not in self.known:
            self.known[key] = ask(self.server, request, feature)
        return self.known[key]


def verdict(
    served: Server, expected: Expected, kind: str, feature: Feature, questions: list[dict]
) -> str:
    """``exact``: plain decoding's tokens in fewer rounds; ``plainly``: its tokens, one a round;
    ``refused``: HTTP 400. In a mixed batch, two plain greedy requests beside them stay right."""
    asked = [(request, feature) for request in requests_of(kind, questions)]
    beside = [(questions[3], Feature()), ({"text": chat("Count: 1, 2, 3,")}, Feature())]
    jobs = asked + beside if kind == "mixed batch" else asked
    try:
        with ThreadPoolExecutor(len(jobs) if kind == "mixed batch" else 1) as pool:
            got = list(pool.map(lambda job: ask(served, *job), jobs))
    except http.HTTPError as error:
        if error.response.status_code != 400:
            raise
        return "refused"
    assert_identical([*chain(*got)], [*chain(*(expected(*job) for job in jobs))])
    answers = chain(*got[: len(asked)])
    return "exact" if any(a.rounds < len(a.ids) - 1 for a in answers) else "plainly"
