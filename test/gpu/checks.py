"""What a server is asked, check by check, and how its answers are judged against plain decoding's.

In float32 the ids are equal. In bfloat16 a tree's rows may be rounded otherwise than one row: an
answer may leave plain decoding's at a token whose two best candidates are nearly tied there, and
what comes behind is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from builders.floors import ACCEPT_LEN_READ, ACCEPT_LEN_READ_BY_CHAIN
from builders.prompts import chat, picture_prompts
from builders.shipped import BLANKS, token
from sglang.glance.serving.server import Answer, Server
from sglang.glance.shipped import PICTURES

NEAR_TIE = 0.5  # nats between the two best tokens; bfloat16 logits of this size step by 0.06-0.12
LOGPROB_TOLERANCE = {True: 1e-3, False: 0.25}  # float32, bfloat16
CONTEXT = 4096  # of the shipped reader
LONG = {"max_new_tokens": 48, "ignore_eos": True}
# Additive and scaling ones apart: plain decoding applies both in no fixed order.
PENALTIES = [
    {"frequency_penalty": 0.4, "presence_penalty": 0.2, **LONG},
    {"repetition_penalty": 1.2, **LONG},
    {"min_new_tokens": 30, "max_new_tokens": 48},
]
BIAS = {"logit_bias": {str(token("1")): 3.0, str(token("2")): -2.0}}
FIELDS = {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["chart", "form"]}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}
SCHEMA["additionalProperties"] = False
GRAMMAR = {"json_schema": json.dumps(SCHEMA)}
GRAMMAR["logit_bias"] = {str(blank): -100 for blank in BLANKS}
LINES = {"regex": r"([A-Z][A-Za-z]+: [A-Z0-9.\-]+\n?){1,4}"}
TEXTS = [{"text": chat("What is the Total?")}, {"text": chat("abc " * 60)}, {"text": "Total:"}]

Ask = tuple[dict, dict]  # a request, and its sampling parameters


def asks(check: str) -> list[Ask]:
    """Every check is asked for with its two best tokens, by which a divergence is judged."""
    pictures = [_with_margins(row) for row in picture_prompts(PICTURES)]
    few = [*pictures[::5], *map(_with_margins, TEXTS)]
    if check in ("alone", "crowd"):
        return [(row, {}) for row in pictures] + [(row, LONG) for row in few[4:]]
    if check == "context":
        # The first two end two tokens before the limit, where a window reaches past it.
        return [_until_the_context_ends(n) for n in (3990, 4010)] + [(row, LONG) for row in few[:4]]
    sampling = {
        "cold": [{"temperature": 0.4, "top_p": 1e-6, **LONG}],
        "seeded": [{"temperature": 1.0, "sampling_seed": 5, **LONG}],
        "penalties": PENALTIES,
        "bias": [{**LONG, **BIAS}],
        "grammar": [GRAMMAR, LINES],
        "logprobs": [LONG],
    }[check]
    return [(row, params) for params in sampling for row in few]


def _with_margins(request: dict) -> dict:
    return {**request, "extra": {"return_logprob": True, "top_logprobs_num": 2}}


def _until_the_context_ends(words: int) -> Ask:
    return _with_margins({"text": chat("word " * words)}), {
        "max_new_tokens": CONTEXT - words - 20,
        "ignore_eos": True,
    }


def answers(server: Server, check: str) -> list[Answer]:
    """One at a time, or all at once where requests are to share batches."""
    at_once = 1 if check == "alone" else 12
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda ask: server.generate(ask[0], **ask[1]), asks(check)))


class Verdict(NamedTuple):
    good: bool
    reason: str
    figures: dict


def judge(
    check: str, exact: bool, chain: bool, plain: Sequence[Answer], drafted: Sequence[Answer]
) -> Verdict:
    """``exact``: no answer may differ. Otherwise each may, from a near tie on."""
    steps = [first_difference(a, b) for a, b in zip(plain, drafted, strict=True)]
    margins = {n: margin(plain[n], at) for n, at in enumerate(steps) if at is not None}
    figures = {
        "answers": len(drafted),
        "divergences": len(margins),
        "margins": [round(nats, 4) for nats in margins.values()],
        "accept_len": round(accept_len(drafted), 3),
    }
    bad = [
        f"answer {n} at token {steps[n]}" for n, nats in margins.items() if exact or nats > NEAR_TIE
    ]
    if not any(answer.rounds for answer in drafted):
        bad.append("no verify round was counted")
    if check == "alone":
        read = [a for a, (row, _) in zip(drafted, asks(check)) if _is_read(row)]
        floor = ACCEPT_LEN_READ_BY_CHAIN if chain else ACCEPT_LEN_READ
        figures["accept_len_read"] = round(accept_len(read), 3)
        if accept_len(read) < floor:
            bad.append(f"accept length {accept_len(read):.3f} below {floor}")
    if check == "logprobs":
        figures["logprob_error"] = max(map(_logprob_error, plain, drafted, steps))
        if figures["logprob_error"] > LOGPROB_TOLERANCE[exact]:
            bad.append(f"log-probabilities differ by {figures['logprob_error']:.4f}")
    return Verdict(not bad, "; ".join(bad), figures)


def first_difference(plain: Answer, drafted: Answer) -> int | None:
    """Output position at which the ids part; None where they are the same."""
    for step, (a, b) in enumerate(zip(plain.ids, drafted.ids)):
        if a != b:
            return step
    shorter = min(len(plain.ids), len(drafted.ids))
    return None if len(plain.ids) == len(drafted.ids) else shorter


def margin(answer: Answer, step: int) -> float:
    """Nats between the two likeliest tokens at output position ``step``; endless where it is
    behind the answer's end, which no near tie explains."""
    rows = answer.meta["output_top_logprobs"]
    if step >= len(rows):
        return float("inf")
    best = sorted((entry[0] for entry in rows[step]), reverse=True)
    return best[0] - best[1]


def _is_read(row: dict) -> bool:
    return row.get("task") in ("document", "chart")


def accept_len(drafted: Sequence[Answer]) -> float:
    return sum(len(a.ids) - 1 for a in drafted) / max(sum(a.rounds for a in drafted), 1)


def _logprob_error(plain: Answer, drafted: Answer, step: int | None) -> float:
    """Largest difference of a token's log-probability, up to where the ids part."""
    pairs = zip(
        plain.meta["output_token_logprobs"][:step], drafted.meta["output_token_logprobs"][:step]
    )
    return max((abs(a[0] - b[0]) for a, b in pairs), default=0.0)
