"""Calls of every API the server speaks, a row each: what changes in an ordinary greedy call."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from builders.pictures import encode, form
from builders.prompts import chat
from builders.shipped import token
from sglang.glance.shipped import READER


class Call(NamedTuple):
    """``body`` None: a GET. ``status``: what plain decoding answers it with."""

    path: str
    body: dict | None = None
    status: int = 200


Rows = dict[str, dict[str, Any]]

MODEL = str(READER)
TEXT = "Name: PARIS\nTotal: 12.50\nRead all lines."
PICTURE = encode(form(3))  # a data URL
IDS = [40 + i % 200 for i in range(30)]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
GREEDY = {"model": MODEL, "temperature": 0}
PROMPT_LOGPROBS = {"return_logprob": True, "logprob_start_len": 0}
CHOICE = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["total"],
    "additionalProperties": False,
}
# Without a place for blanks, which the reader would never leave.
ARGUMENTS = {"type": "object", "enum": [{"total": 7}, {"total": 12}]}
FUNCTION = {"name": "find", "description": "Find it.", "parameters": ARGUMENTS, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}]
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<n>", "schema": {"enum": [7, 12]}, "end": "</n>"}],
    "triggers": ["<n>"],
    "at_least_one": True,
}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "Name: PA"},
]


def chat_call(**more: Any) -> Call:
    """About a picture; ``messages`` instead of it."""
    shown = {"type": "image_url", "image_url": {"url": PICTURE}}
    asked = [shown, {"type": "text", "text": "Read all lines."}]
    body = {**GREEDY, "messages": [{"role": "user", "content": asked}], "max_tokens": 40, **more}
    return Call("/v1/chat/completions", body)


def completion(**more: Any) -> Call:
    return Call("/v1/completions", {**GREEDY, "prompt": chat(TEXT), "max_tokens": 32, **more})


def response(picture: bool = False, **more: Any) -> Call:
    shown = {"type": "input_image", "image_url": PICTURE}
    asked = [shown, {"type": "input_text", "text": "Read all lines."}]
    said = [{"role": "user", "content": asked}] if picture else TEXT
    return Call("/v1/responses", {**GREEDY, "input": said, "max_output_tokens": 40, **more})


def message(picture: bool = False, **more: Any) -> Call:
    """Anthropic's."""
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
    asked = [{"type": "image", "source": source}, {"type": "text", "text": "Read all lines."}]
    said = [{"role": "user", "content": asked if picture else TEXT}]
    return Call("/v1/messages", {**GREEDY, "messages": said, "max_tokens": 40, **more})


def generate(sampling: dict | None = None, **more: Any) -> Call:
    params = {"temperature": 0, "max_new_tokens": 24, **(sampling or {})}
    return Call("/generate", {"sampling_params": params, **more})


def score(status: int = 200, **more: Any) -> Call:
    body = {"query": "Is it 5? ", "items": ["yes 5", "no 7", "a"], "label_token_ids": [40, 50]}
    return Call("/v1/score", {"model": MODEL, **body, **more}, status)


COMPLETIONS: Rows = {
    "text": {},
    "echo": {"echo": True},
    "echo-logprobs": {"echo": True, "logprobs": 2},
    "logprobs": {"logprobs": 3},
    "n": {"n": 2},
    "suffix": {"suffix": " end"},
    "list": {"prompt": [chat(TEXT), chat("Hello.")]},
    "ids": {"prompt": [IDS, IDS[::-1][:20]]},
    "stream": STREAM,
    "stream-echo-logprobs": {**STREAM, "echo": True, "logprobs": 2},
    "stop": {"stop": ["6", "\n"]},
    "stream-stop": {**STREAM, "stop": ["6"]},
    "stop-kept": {"stop": ["6"], "no_stop_trim": True},
    "schema": {"json_schema": json.dumps(CHOICE)},
    "special-tokens": {"skip_special_tokens": False, "return_token_ids": True},
    "min-tokens": {"min_tokens": 20},
}
CHATS: Rows = {
    "picture": {},
    "n": {"n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "meta": {"logprobs": True, "top_logprobs": 2, "return_meta_info": True},
    "ids": {"return_token_ids": True, "return_prompt_token_ids": True},
    "bias": {"logit_bias": {str(token("1")): 4.0}},
    "stops": {"stop": ["a", "1"]},
    "custom": {"custom_params": {"a": [1, 2]}, "seed": 3},
    "stream": STREAM,
    "stream-n": {**STREAM, "n": 2},
    "stream-stops": {**STREAM, "stop": ["1", "Ou"]},
    # Shorter than the answer: where plain decoding streams the end of text alone, SGLang leaves its
    # log-probability out.
    "stream-logprobs": {**STREAM, "logprobs": True, "top_logprobs": 2, "max_tokens": 9},
    "continue": {"messages": TURNS, "continue_final_message": True},
    "tag": {"response_format": TAG},
    "tools": {"tools": TOOLS},
}
RESPONSES: Rows = {
    "text": {},
    "picture": {"picture": True},
    "stream": {"stream": True},
    "stream-picture": {"picture": True, "stream": True},
    "logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "instructions": {"instructions": "Be brief.", "store": False},
    "schema": {"text": {"format": {"type": "json_schema", "name": "s", "schema": CHOICE}}},
    "cut": {"max_output_tokens": 3},
}
MESSAGES: Rows = {
    "text": {},
    "picture": {"picture": True},
    "stream": {"stream": True},
    "stream-picture": {"picture": True, "stream": True},
    "system": {"system": "Be brief."},
    "stop": {"stop_sequences": ["6"]},
    "stream-stop": {"stop_sequences": ["6"], "stream": True},
    "cut": {"max_tokens": 3},
}
BATCH = {"input_ids": [IDS, IDS[5:], IDS[::-1], IDS[3:9]]}
GENERATES: Rows = {
    "texts": {"text": [chat(TEXT), chat("Hello."), "Order: 54287\nTotal:"]},
    "ids": BATCH,
    "ids-n": {**BATCH, "sampling": {"n": 2}},
    "ragged-ids": {
        **BATCH,
        **PROMPT_LOGPROBS,
        "token_ids_logprob": [[1, 2, 3], [], [600], [500, 2]],
    },
    "ragged": {
        **BATCH,
        "return_logprob": [True, False, True, True],
        "logprob_start_len": [0, -1, 7, 3],
        "top_logprobs_num": [3, 0, 1, 0],
        "token_ids_logprob": [[], [4], [5, 6], [9]],
    },
    "text-in-logprobs": {
        **PROMPT_LOGPROBS,
        "text": chat(TEXT),
        "return_text_in_logprobs": True,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5, 600],
    },
    "flat-logprobs": {
        **PROMPT_LOGPROBS,
        "text": chat(TEXT),
        "top_logprobs_num": 2,
        "return_flat_raw_top_logprobs": True,
        "return_flat_raw_output_top_logprobs": True,
    },
    "two-lengths": {
        "text": [chat(TEXT), chat("Hello.")],
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": 5},
            {"temperature": 0, "max_new_tokens": 9, "stop": ["a"]},
        ],
    },
    "prompt-ids": {"text": chat(TEXT), "return_prompt_token_ids": True},
}
RESCORED = generate(
    **BATCH,
    sampling={"max_new_tokens": 0},
    return_logprob=True,
    logprob_start_len=[0, 5, 29, 3],
    top_logprobs_num=[0, 2, 1, 0],
    token_ids_logprob=[[1], [2, 3], [], [4]],
)
COUNTED = {name: message(picture=True).body[name] for name in ("model", "messages")}
OTHERS: dict[str, Call] = {
    "score": score(apply_softmax=True),
    "score-ids": score(query=IDS, items=[[50, 51], [60]], return_token_logprobs=True),
    "score-item-first": score(item_first=True),
    "score-labels-each": score(label_token_ids=[[40, 50], [60, 70], [3, 500]]),
    "score-outside": score(400, label_token_ids=[40, 5000]),
    "rerank": Call("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b", "c"]}, 400),
    "embeddings": Call("/v1/embeddings", {"model": MODEL, "input": "a"}, 400),
    "classify": Call("/v1/classify", {"model": MODEL, "input": "a"}, 400),
    "response-of-before": response(previous_response_id="resp_0")._replace(status=400),
    "input-embeds": generate(input_embeds=[[0.0] * 8] * 4)._replace(status=400),
    "logprobs-past-the-prompt": generate(
        input_ids=IDS, return_logprob=True, logprob_start_len=len(IDS) + 5
    )._replace(status=400),
    "message-tokens": Call("/v1/messages/count_tokens", COUNTED),
    "models": Call("/v1/models"),
    "tokenize": Call("/tokenize", {"model": MODEL, "prompt": TEXT}),
    "detokenize": Call("/detokenize", {"model": MODEL, "tokens": IDS}),
}


def table() -> dict[str, Call]:
    kinds = {
        "completion": (completion, COMPLETIONS),
        "chat": (chat_call, CHATS),
        "response": (response, RESPONSES),
        "message": (message, MESSAGES),
        "generate": (generate, GENERATES),
    }
    calls = {
        f"{kind}-{name}": build(**row)
        for kind, (build, rows) in kinds.items()
        for name, row in rows.items()
    }
    return calls | OTHERS
