"""What answers with log-probabilities are compared by.

Prompts are prefilled in chunks of other sizes, and layers that SGLang does not pack sum in another
order for a tree's rows than for one. Logits of the shipped reader lie within +-40; 5e-5 is a dozen
roundings there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders.shipped import VOCAB
from harness import Answer, assert_identical

TOLERANCE = 5e-5
TOP = 5
SOME_IDS = [0, 25, 198, 500, VOCAB - 1]
OUTPUT = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
INPUT = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
EVERYTHING = {
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": TOP,
    "token_ids_logprob": SOME_IDS,
}


def flat(entries: Sequence) -> list[tuple[float | None, int]]:
    """One (value, id) after another, of lists of entries or of lists of them."""
    out = []
    for entry in entries:
        if entry is None:  # no top list stands before a prompt's first token
            out.append((None, -1))
        elif isinstance(entry[0], list):
            out += flat(entry)
        else:
            out.append((entry[0], entry[1]))
    return out


def assert_same_logprobs(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Everything that plain decoding reports, id by id; values within the tolerance."""
    assert_identical(got, expected)
    for ours, plain in zip(got, expected, strict=True):
        for key in (*OUTPUT, *INPUT):
            assert (key in ours.meta) == (key in plain.meta), key
            ours_all, plain_all = flat(ours.meta.get(key) or []), flat(plain.meta.get(key) or [])
            assert [i for _, i in ours_all] == [i for _, i in plain_all], key
            for (a, _), (b, _) in zip(ours_all, plain_all, strict=True):
                assert a == b or a == pytest.approx(b, abs=TOLERANCE), key
