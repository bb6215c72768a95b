"""Ids in, ids out: servers without a tokenizer and without a prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.apis import BATCH, IDS, PROMPT_LOGPROBS, Call, generate
from builders.shipped import EOS, IMAGE, VISION_END, VISION_START, VOCAB
from harness import PLAIN, READER, Server, booting, glance_flags, start, wait_until_up
from replies import assert_same, send, send_together

pytestmark = pytest.mark.slow
FLAGS = ("--skip-tokenizer-init", "--disable-radix-cache")


@pytest.fixture(scope="module")
def pair(logs: Path) -> Iterator[tuple[Server, Server]]:
    with (
        booting(READER, logs / "ids-plain.log", *PLAIN, *FLAGS) as plain,
        start(READER, logs / "ids.log", *glance_flags(), *FLAGS) as ours,
    ):
        wait_until_up(plain)
        yield ours, plain


def calls(picture: str) -> dict[str, Call]:
    shown = [VISION_START, IMAGE, VISION_END, *IDS]
    return {
        "batch": generate(**BATCH, **PROMPT_LOGPROBS, top_logprobs_num=2),
        "end-ignored": generate({"ignore_eos": True, "max_new_tokens": 60}, **BATCH),
        "stop-token": generate({"stop_token_ids": [285, 21]}, **BATCH),
        "penalties": generate({"frequency_penalty": 0.5, "repetition_penalty": 1.2}, **BATCH),
        "bias": generate({"logit_bias": {str(EOS): -50.0}}, **BATCH),
        "picture": generate(input_ids=shown, image_data=[picture]),
        "one-token": generate({"max_new_tokens": 1}, **BATCH, **PROMPT_LOGPROBS),
    }


# SGLang's scheduler would end at the last one.
REFUSED = {
    "min-new-tokens": generate({"min_new_tokens": 4}, **BATCH),
    "stop": generate({"stop": ["a"]}, **BATCH),
    "stop-regex": generate({"stop_regex": "a"}, **BATCH),
    "text": generate(text="Hello."),
    "regex": generate({"regex": "a+"}, input_ids=IDS),
    "outside": generate(input_ids=[VOCAB]),
    "embeddings": generate(input_embeds=[[0.0] * 8] * 4),
}


def test_replies_are_plain_decodings(pair: tuple[Server, Server], questions: list[dict]) -> None:
    asks = calls(questions[0]["images"][0])
    for name, call in asks.items():
        ours, expected = (send(server, call) for server in pair)
        assert expected.status == 200, (name, expected)
        assert_same(ours, expected)
    together = (send_together(server, list(asks.values())) for server in pair)
    assert_same(*together)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_tokenizer_is_refused(pair: tuple[Server, Server], name: str) -> None:
    assert send(pair[0], REFUSED[name]).status == 400
    assert send(pair[0], generate(input_ids=IDS)).status == 200
