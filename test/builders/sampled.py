"""The distribution of short sampled answers, from plain decoding's own log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from harness import Server

LENGTH = 3  # tokens an answer: the prefill's, and two that a tree may give in one round
Answer = tuple[int, ...]


@dataclass(frozen=True)
class Controls:
    """Of one request, by SGLang's names; ``params`` is what the request is sent with."""

    top_k: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)

    def params(self) -> dict:
        given = {name: value for name, value in vars(self).items() if value != {}}
        return given | {"max_new_tokens": LENGTH, "ignore_eos": True}

    def law(self, logprobs: dict[int, float], output: Answer) -> dict[int, float]:
        """Of the next token: penalties, bias, temperature, top-k, top-p, min-p, in this order."""

        def adjusted(token: int) -> float:
            value = logprobs[token] - self.frequency_penalty * output.count(token)
            value -= self.presence_penalty if token in output else 0.0
            return (value + self.logit_bias.get(str(token), 0.0)) / self.temperature

        weights = {token: math.exp(adjusted(token)) for token in logprobs}
        total, before, kept = sum(weights.values()), 0.0, {}
        for token in sorted(weights, key=weights.get, reverse=True)[: self.top_k]:
            prob = weights[token] / total
            if before <= self.top_p and prob >= self.min_p * max(kept.values(), default=0.0):
                kept[token] = prob
            before += prob
        return {token: prob / sum(kept.values()) for token, prob in kept.items()}


def ask(server: Server, request: dict, num: int, sampling: dict, **extra: object) -> list[dict]:
    """`num` answers to one request."""
    body = {"text": request["text"], "sampling_params": sampling | {"n": num}, **extra}
    if request.get("images"):
        body["image_data"] = request["images"]
    reply = server.session.post(f"{server.url}/generate", json=body, timeout=300)
    reply.raise_for_status()
    return reply.json()


def contexts(
    plain: Server, request: dict, top_k: int, temperature: float = 1.0
) -> dict[Answer, dict[int, float]]:
    """Logits, up to a constant, of the likeliest tokens after every beginning that plain decoding
    came upon in 300 answers. The rest is rare where it is sampled no hotter; it counts as one kind
    of answer."""
    sampling = {"temperature": temperature, "top_k": top_k}
    sampling |= {"max_new_tokens": LENGTH, "ignore_eos": True}
    found: dict[Answer, dict[int, float]] = {}
    for _ in range(3):
        logged = {"return_logprob": True, "top_logprobs_num": 64}
        for reply in ask(plain, request, 100, sampling, **logged):
            for place, top in enumerate(reply["meta_info"]["output_top_logprobs"]):
                begun = tuple(reply["output_ids"][:place])
                found[begun] = {token: logprob * temperature for logprob, token, _ in top}
    return found


def distribution(
    known: dict[Answer, dict[int, float]], controls: Controls
) -> tuple[dict[Answer, float], dict[Answer, dict[int, float]]]:
    """Probability of every answer whose beginnings are known, and the laws it comes from."""
    whole, begun, laws = {}, {(): 1.0}, {}
    for place in range(LENGTH):
        longer = {}
        for start, prob in begun.items():
            if start not in known:
                continue
            laws[start] = controls.law(known[start], start)
            longer |= {(*start, token): prob * p for token, p in laws[start].items()}
        begun = longer
        whole = longer if place == LENGTH - 1 else {}
    return whole, laws
