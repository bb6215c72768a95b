"""Reasoning and tool parsers, with grammars and thinking budgets: plain decoding's replies.

The reader neither thinks nor calls tools: a budget makes SGLang write the end-of-thinking tag, and
grammars make the reader write tags and calls, so that the parsers have something to parse.
"""

from __future__ import annotations

import pytest
from builders.apis import (
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
from replies import Reply, assert_same, send_fresh, send_together

CALL = r'<tool_call>\n\{"name": "find", "arguments": \{"total": [1-9][0-9]?\}\}\n</tool_call>'
ANSWER = r"([A-Z][a-z]+: [A-Z0-9.]+\n?){1,4}"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": CHOICE}}
NAMED = {"type": "function", "function": {"name": "find"}}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def budget(num_tokens: int) -> dict:
    return {"custom_params": {"thinking_budget": num_tokens}}


# How the answer begins, and what it then holds.
THINKING = {"off": NO_THINKING, "endless": {}, **{f"budget-{n}": budget(n) for n in (0, 5, 12)}}
ANSWERS = {
    "free": {},
    "schema": {"response_format": SCHEMA},
    "lines": {"regex": ANSWER},
    "tag": {"response_format": TAG},
    "tool-required": {"tools": TOOLS, "tool_choice": "required"},
    "tool-named": {"tools": TOOLS, "tool_choice": NAMED},
    "tool-called": {"tools": TOOLS, "tool_choice": "auto", "regex": CALL},
    "two-tools-called": {"tools": TOOLS, "regex": rf"{CALL}\n{CALL}"},
    "thought-and-tool": {"tools": TOOLS, "regex": rf"<think>[A-Za-z: ]{{1,9}}</think>{CALL}"},
}
"""Of the OpenAI API: one row, asked whole and streamed."""
MORE = {
    "stop-in-thought": {"stop": ["e"]},
    "cut-in-thought": {"max_tokens": 9},
    "thought-in-text": {"separate_reasoning": False},
    "unstreamed-thought": {**STREAM, "stream_reasoning": False},
    "n": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "penalties": {"frequency_penalty": 0.5, "min_tokens": 30},
    "ignored-end": {"ignore_eos": True},
    "continued": {"messages": TURNS, "continue_final_message": True},
}
FLAT_TOOL = {"type": "function", **FUNCTION}
CLAUDES_TOOL = {"name": "find", "description": "d", "input_schema": CHOICE}


def calls() -> dict[str, Call]:
    out = {}
    for how, thinking in THINKING.items():
        for what, answer in ANSWERS.items():
            for suffix, stream in (("", {}), ("-stream", STREAM)):
                row = {"max_tokens": 80, **thinking, **answer, **stream}
                out[f"{how}-{what}{suffix}"] = chat_call(**row)
    for what, row in MORE.items():
        out[f"off-{what}"] = chat_call(**NO_THINKING, **row)
        out[f"budget-5-{what}"] = chat_call(**budget(5), **row)
    for number in (0, 3, 9, 16):
        asked = {"text": chat(TEXT), "require_reasoning": True, "max_thinking_tokens": number}
        params = {"max_new_tokens": 50, "regex": "[a-z]{3,9}"}
        out[f"generate-budget-{number}"] = generate(params, **asked, **PROMPT_LOGPROBS)
    for suffix, stream in (("", {}), ("-stream", {"stream": True})):
        tool = {"tools": [FLAT_TOOL], "tool_choice": "required", **NO_THINKING}
        out[f"response-thought{suffix}"] = response(picture=True, **stream)
        out[f"response-tool{suffix}"] = response(**tool, **stream)
        tool = {"tools": [CLAUDES_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 60}
        tool |= {"thinking": {"type": "disabled"}}
        out[f"message-thought{suffix}"] = message(picture=True, **stream)
        out[f"message-tool{suffix}"] = message(**tool, **stream)
    return out


CALLS = calls()


def parsed(reply: Reply, part: str) -> bool:
    """Whether ``part`` of a chat answer is there, streamed or whole."""
    if isinstance(reply.content, dict) and "choices" in reply.content:
        return any(choice["message"].get(part) for choice in reply.content["choices"])
    return any(f"delta/{part}" in path and value for path, value in reply.content.items())


@pytest.mark.parametrize("name", CALLS)
def test_reply_is_plain_decodings(parsing: tuple[Server, Server], name: str) -> None:
    glance, plain = parsing
    expected = send_fresh(plain, CALLS[name])
    assert expected.status == 200, expected
    assert_same(send_fresh(glance, CALLS[name]), expected)
    how, _, what = name.partition("-")
    if what.removeprefix("budget-") and "tool" in what and how in ("off", "budget"):
        assert parsed(expected, "tool_calls") or "message" in name or "response" in name


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
        replies.append(send_fresh(server, again))
    assert_same(*replies)
    assert replies[0].status == 200
