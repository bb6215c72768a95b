"""Sampling parameters of the wrong type, and values that nobody means."""

from __future__ import annotations

from collections.abc import Iterator

from builders.hostile_case import SHORT, Member, ask, member
from builders.shipped import VOCAB

NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "max_new_tokens",
    "min_new_tokens",
    "n",
    "sampling_seed",
    "stream_interval",
)
FLAGS = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")


def wrong_types() -> Iterator[Member]:
    for name in NUMBERS:
        for kind, value in {"string": "x", "list": [1], "dict": {"a": 1}, "bool": True}.items():
            yield member(f"{name}-{kind}", ask(params={name: value}))
    for name in FLAGS:
        for kind, value in {"string": "x", "number": 3, "list": []}.items():
            yield member(f"{name}-{kind}", ask(params={name: value}))
    for name in ("stop", "stop_regex", "stop_token_ids", "logit_bias", "json_schema", "regex"):
        for kind, value in {"number": 5, "dict": {"a": "b"}, "mixed": [1, "a", None]}.items():
            yield member(f"{name}-{kind}", ask(params={name: value}))
    for kind, value in {"list": [], "string": "x", "number": 4, "null": None}.items():
        yield member(f"sampling_params-{kind}", {**ask(), "sampling_params": value})
    yield member("sampling_params-two-for-one", {**ask(), "sampling_params": [SHORT, SHORT]})


def absurd_values() -> Iterator[Member]:
    huge, big = 1e308, 2**70
    ranges = {
        "temperature": (-1, 1e-30, huge, float("nan"), float("inf"), big),
        "top_p": (0, -1, 1.0001, huge, float("nan")),
        "top_k": (0, -2, 2**31, big, 1.5),
        "min_p": (-0.1, 1.1, float("nan")),
        "frequency_penalty": (-2.1, huge, float("nan")),
        "presence_penalty": (2.1, float("-inf")),
        "repetition_penalty": (0, -1, 2.1, float("nan")),
        "max_new_tokens": (-1, 2**31, 2**63, big, 1.5),
        "min_new_tokens": (-1, 9, big),
        "n": (0, -1),
        "sampling_seed": (-1, 2**63, big, 0.5),
        "stream_interval": (0, -1, big),
        "beam_width": (0, -1, 2, big),
    }
    for name, values in ranges.items():
        for value in values:
            yield member(f"{name}-{value}", ask(params={name: value}))
    drawn = {"temperature": 1.0}
    for name, bias in {
        "outside": {"99999": 1.0},
        "negative-id": {"-1": 1.0},
        "word": {"a": 1.0},
        "string-value": {"5": "much"},
        "nan": {"5": float("nan")},
        "huge": {"5": huge},
        "minus-huge": {"5": -huge},
        "all-minus-huge": {str(i): -huge for i in range(VOCAB)},
        "all": {str(i): -100.0 for i in range(VOCAB)},
    }.items():
        yield member(f"logit_bias-{name}", ask(params={"logit_bias": bias}))
        yield member(f"logit_bias-{name}-drawn", ask(params={"logit_bias": bias, **drawn}))
    for name, stop in {"empty": "", "empties": ["", ""], "long": "x" * 10**5, "nul": "\0"}.items():
        yield member(f"stop-{name}", ask(params={"stop": stop}))
    for name, regex in {"open": "(", "star": "*", "nested": "(a+)+$", "empty": ""}.items():
        yield member(f"stop_regex-{name}", ask(params={"stop_regex": regex}))
    many = list(range(2 * VOCAB))
    for name, ids in {"outside": [10**9], "negative": [-5], "huge": [big], "many": many}.items():
        yield member(f"stop_token_ids-{name}", ask(params={"stop_token_ids": ids}))
        kept = {"stop_token_ids": ids, "min_new_tokens": 3}
        yield member(f"stop_token_ids-{name}-min", ask(params=kept))
