"""The ways of decoding that are compared: an arm is the flags of a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PLAIN, GLANCE = "plain", "glance"
ROUND_LOG_ENV = "SGLANG_GLANCE_ROUND_LOG"
# The vision encoder's output is cached by picture and survives a flush; off, so repeats pay for it.
COLD = {"SGLANG_VLM_CACHE_SIZE_MB": "0"}
NAMES = {PLAIN: "plain decoding", GLANCE: "GLANCE"}


def arms(
    head: Path, eagle3_head: Path | None = None, budgets: Sequence[int] = ()
) -> dict[str, list[str]]:
    """Server flags of each arm, plain decoding first. ``budgets``: more trees, a ``glance-N`` for
    each N tokens verified."""
    glance = ["--speculative-algorithm", "GLANCE", "--speculative-draft-model-path", str(head)]
    size = "--speculative-num-draft-tokens"
    every = {
        PLAIN: [],
        GLANCE: glance,
        "chain": [*glance, "--speculative-eagle-topk", "1"],
        **{f"{GLANCE}-{budget}": [*glance, size, str(budget)] for budget in budgets},
        "ngram": ["--speculative-algorithm", "NGRAM", size, "8"],
    }
    if eagle3_head:
        head_path = ["--speculative-draft-model-path", str(eagle3_head)]
        eagle3 = ["--speculative-algorithm", "EAGLE3", *head_path, size, "32"]
        eagle3 += ["--speculative-eagle-topk", "8", "--speculative-num-steps"]
        every |= {
            "eagle3": [*eagle3, "8"],
            "eagle3-3": [*eagle3, "3"],
            "ngram-32": ["--speculative-algorithm", "NGRAM", size, "32"],
        }
    return every
