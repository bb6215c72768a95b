"""Reasoning and tool parsers, with grammars and thinking budgets: plain decoding's replies.

The reader neither thinks nor calls tools: a budget makes SGLang write the end-of-thinking tag, and
grammars make the reader write tags and calls, so that the parsers have something to parse.
"""

from __future__ import annotations

import re

import pytest
from builders.apis import (
    ARGUMENTS,
    CHOICE,
    FUNCTION,
    PROMPT_LOGPROBS,
    STREAM,
    TAG,
    TEXT,
    TOOLS,
    TURNS,
    Call,
    chat_call,
    generate,
    message,
    response,
)
from harness import Server, assert_no_slot_lost, chat
from replies import assert_same, send, send_together

CALL = r'<tool_call>\n\{"name": "find", "arguments": \{"total": [1-9][0-9]?\}\}\n</tool_call>'
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": CHOICE}}
NAMED = {"type": "function", "function": {"name": "find"}}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def budget(num_tokens: int) -> dict:
    return {"custom_params": {"thinking_budget": num_tokens}}


# How an answer begins, what it then holds, and what else is asked: chat calls.
THINKING = {"off": NO_THINKING, "budget-5": budget(5)}
ANSWERS = {
    "free": {},
    "schema": {"response_format": SCHEMA},
    "tag": {"response_format": TAG},
    "tool-required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 90},
    "tool-named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 90},
    "tool-called": {"tools": TOOLS, "tool_choice": "auto", "regex": CALL, "max_tokens": 90},
}
STREAMED = ("free", "tool-required", "tool-called")
MORE = {
    "budget-0": budget(0),
    "budget-12-schema": {**budget(12), "response_format": SCHEMA},
    "endless": {},
    "endless-stream-stop": {**STREAM, "stop": ["e"]},
    "cut-in-thought": {**budget(20), "max_tokens": 9},
    "tag-in-text": {**budget(5), "separate_reasoning": False},
    "unstreamed-thought": {**budget(5), **STREAM, "stream_reasoning": False},
    "two-answers": {**budget(5), "n": 2},
    "logprobs": {**budget(5), "logprobs": True, "top_logprobs": 2},
    "penalties": {**budget(5), "frequency_penalty": 0.5, "min_tokens": 30},
    "ignored-end": {**budget(5), "ignore_eos": True},
    "continued": {**budget(5), "messages": TURNS, "continue_final_message": True},
    "tags-written": {**NO_THINKING, "regex": f"<think>[A-Za-z: ]{{1,9}}</think>{CALL}"},
}
FLAT_TOOL = {"type": "function", **FUNCTION}
ANTHROPIC_TOOL = {"name": "find", "input_schema": ARGUMENTS, "strict": True}


def chats() -> dict[str, Call]:
    out = {name: chat_call(**row) for name, row in MORE.items()}
    for how, thinking in THINKING.items():
        for what, answer in ANSWERS.items():
            row = {**thinking, **answer}
            out[f"{how}-{what}"] = chat_call(**row)
            if what in STREAMED:
                out[f"{how}-{what}-stream"] = chat_call(**row, **STREAM)
    return out


def others() -> dict[str, Call]:
    asked = {"text": chat(TEXT), "require_reasoning": True, "max_thinking_tokens": 9}
    out = {"generate": generate({"regex": "[a-z]{3,9}"}, **asked, **PROMPT_LOGPROBS)}
    disabled = {"thinking": {"type": "disabled"}}
    for suffix, stream in (("", {}), ("-stream", {"stream": True})):
        tool = {"tools": [FLAT_TOOL], "tool_choice": "required", **NO_THINKING}
        tool["max_output_tokens"] = 90
        out[f"response-thought{suffix}"] = response(picture=True, **stream)
        out[f"response-tool{suffix}"] = response(**tool, **stream)
        tool = {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}, **disabled}
        tool["max_tokens"] = 90
        out[f"message-thought{suffix}"] = message(picture=True, **stream)
        out[f"message-tool{suffix}"] = message(**tool, **stream)
    return out


CALLS = chats() | others()
# What must stand in plain decoding's reply, by a part of the row's name: something was parsed.
PARSED = {
    "tool": r"tool_calls': \[|tool_calls/function|tool_use|function_call'",
    "thought": r"reasoning_content': 'The |delta/reasoning_content': 'The |thinking|reasoning_text",
    "budget-5": r"reasoning_tokens': \[?12\b",  # five, and the seven of the tag
}


@pytest.mark.parametrize("name", CALLS)
def test_reply_is_plain_decodings(parsing: tuple[Server, Server], name: str) -> None:
    glance, plain = parsing
    expected = send(plain, CALLS[name])
    assert expected.status == 200, expected
    assert_same(send(glance, CALLS[name]), expected)
    for part, found in PARSED.items():
        assert part not in name or re.search(found, str(expected.content)), expected


def test_all_at_once(parsing: tuple[Server, Server]) -> None:
    """Some think, some call tools, some do neither, in a pool that is too small for all."""
    glance, plain = parsing
    calls = list(CALLS.values())
    assert_same(send_together(glance, calls), send_together(plain, calls))
    assert_no_slot_lost(glance)


def test_stored_responses(parsing: tuple[Server, Server]) -> None:
    """The second turn is asked by the first one's id."""
    replies = []
    for server in parsing:
        url = f"{server.url}/v1/responses"
        first = server.session.post(url, json=response(picture=True, store=True).body).json()
        again = response(previous_response_id=first["id"], input="And the Total?")
        replies.append(send(server, again))
    assert_same(*replies)
    assert replies[0].status == 200
