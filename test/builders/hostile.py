"""Requests that no client should send, made by small rules."""

from __future__ import annotations

import json
from collections.abc import Iterator

from builders.hostile_case import QUESTION, READ, SHORT, Case, Member, ask, member
from builders.hostile_parameters import absurd_values, wrong_types
from builders.hostile_pictures import lying_urls, pictures, wrong_counts
from builders.pictures import encode, form
from builders.prompts import chat
from builders.shipped import IMAGE, MASK, VIDEO, VISION_END, VISION_START, VOCAB

CONTEXT = 4096


def cases() -> list[Case]:
    groups = (
        ("picture", pictures()),
        ("url", lying_urls()),
        ("count", wrong_counts()),
        ("text", texts()),
        ("end", context_ends()),
        ("type", wrong_types()),
        ("value", absurd_values()),
        ("field", fields()),
        ("grammar", grammars()),
        ("ids", input_ids()),
        ("logprob", logprobs()),
        ("chat", chats()),
        ("body", bodies()),
    )
    return [
        Case(f"{group}-{name}", body, path)
        for group, members in groups
        for name, body, path in members
    ]


def texts() -> Iterator[Member]:
    for name, text in {
        "empty": "",
        "space": " ",
        "newline": "\n",
        "nul": "\0",
        "controls": "".join(map(chr, range(32))),
        "c1-controls": "".join(map(chr, range(127, 160))),
        "lone-surrogate": "a\ud800b",
        "low-surrogate": "\udc00" * 5,
        "swapped-surrogates": "\udc00\ud800",
        "astral": "\U0001f600" * 20,
        "noncharacter": "\ufffe\uffff",
        "combining": "e" + "\u0301" * 300,
        "bidi": "\u202eabc\u202c\u2066",
        "bom": "\ufeffHello",
        "zero-width": "\u200b\u200d" * 40,
        "nfc-bomb": "\ufdfa" * 40,
        "script": "<script>alert(1)</script>",
        "braces": "{{{{%s}}}} {0} %n",
        "one-letter": "a" * 900,
    }.items():
        yield member(name, ask(text))
    for name, value in {
        "null": None,
        "number": 7,
        "float": 1.5,
        "bool": True,
        "dict": {"text": "a"},
        "empty-list": [],
        "list-of-numbers": [1, 2],
        "list-of-null": [None],
        "nested-list": [["a"]],
        "list-with-empty": ["", "Hello."],
    }.items():
        yield member(f"is-{name}", {**ask(), "text": value})
    yield member("absent", {"sampling_params": SHORT})


def context_ends() -> Iterator[Member]:
    for length in (CONTEXT - 40, *range(CONTEXT - 9, CONTEXT + 3), CONTEXT + 400, 4 * CONTEXT):
        ids = [40 + i % 200 for i in range(length)]
        body = {"input_ids": ids, "sampling_params": {**SHORT, "ignore_eos": True}}
        yield member(str(length), body)
    for length in range(CONTEXT - 6, CONTEXT):
        ids = [40 + i % 200 for i in range(length)]
        params = {"temperature": 0, "max_new_tokens": None, "ignore_eos": True}
        yield member(f"{length}-unbounded", {"input_ids": ids, "sampling_params": params})
    ids = [60 + i % 90 for i in range(CONTEXT - 60)]
    whole = {**SHORT, "max_new_tokens": 2 * CONTEXT, "ignore_eos": True}
    yield member("answer-past", {"input_ids": ids, "sampling_params": whole})
    none = {"temperature": 0, "max_new_tokens": None, "ignore_eos": True}
    yield member("answer-unbounded", {"input_ids": ids, "sampling_params": none})
    yield member("zero-tokens", ask(params={"max_new_tokens": 0}))
    yield member("one-token", ask(params={"max_new_tokens": 1}))
    many = ask(chat(READ, images=80), image_data=[encode(form(73, (256, 256)))] * 80)
    yield member("pictures-past", many)


def fields() -> Iterator[Member]:
    yield member("unknown", ask(surprise=1))
    yield member("unknown-nested", ask(surprise={"a": [{"b": None}]}))
    yield member("unknown-parameter", ask(params={"surprise": 1}))
    yield member("internal-parameter", ask(params={"is_normalized": True}))
    yield member("stream-string", ask(stream="perhaps"))
    yield member("lora", ask(lora_path="nowhere"))
    yield member("processor", ask(custom_logit_processor="not a processor"))
    yield member("session", ask(session_params={"id": "nowhere"}))
    yield member("rid-number", ask(rid=7))
    yield member("rid-list", ask(rid=["a", "b"]))
    yield member("rid-empty", ask(rid=""))
    yield member("priority", ask(priority=10**30))
    yield member("hidden-states", ask(return_hidden_states=True))
    scored = ask(params={"max_new_tokens": 0}, return_logprob=True, token_ids_logprob=[1])
    yield member("scored-places", {**scored, "token_indices_to_pool": [1]})
    yield member("experts", ask(return_routed_experts=True))
    yield member("rank", ask(data_parallel_rank=9))
    yield member("bootstrap", ask(bootstrap_host="nowhere", bootstrap_port=1, bootstrap_room=3))
    yield member("embeds", {"input_embeds": [[0.5] * 8] * 4, "sampling_params": SHORT})
    yield member("embeds-words", {"input_embeds": "x", "sampling_params": SHORT})
    yield member("modalities", ask(modalities=["taste"]))
    yield member("custom-params", ask(params={"custom_params": {"a": 1}}))
    yield member("custom-params-list", ask(params={"custom_params": [1]}))


def grammars() -> Iterator[Member]:
    schemas = {
        "not-json": "{",
        "number": "3",
        "string": '"x"',
        "list": "[]",
        "true": "true",
        "null": "null",
        "bad-type": '{"type": "colour"}',
        "type-number": '{"type": 5}',
        "missing-ref": '{"$ref": "#/$defs/none"}',
        "endless-ref": '{"$ref": "#"}',
        "required-missing": '{"type": "object", "required": ["a"]}',
        "false-property": '{"type": "object", "properties": {"a": false}, "required": ["a"]}',
        "min-over-max": '{"type": "integer", "minimum": 5, "maximum": 3}',
        "long-over-short": '{"type": "string", "minLength": 9, "maxLength": 3}',
        "bad-pattern": '{"type": "string", "pattern": "("}',
        "empty-enum": '{"enum": []}',
        "deep": '{"type":"array","items":' * 60 + '{"type":"null"}' + "}" * 60,
        "nul": '{"const": "\\u0000"}',
    }
    for name, schema in schemas.items():
        yield member(f"schema-{name}", ask(params={"json_schema": schema}))
    for name, regex in {
        "open": "(",
        "class": "[z-a]",
        "star": "**",
        "lookbehind": "(?<=a)b",
        "backref": r"(a)\1",
        "never": r"[^\s\S]",
        "huge-count": "a{100000}",
        "nul": "\0",
        "surrogate": "\ud800",
    }.items():
        yield member(f"regex-{name}", ask(params={"regex": regex}))
    for name, ebnf in {
        "empty-root": 'root ::= ""',
        "no-root": 'rule ::= "a"',
        "junk": "::= ::=",
        "endless": "root ::= root",
        "missing": "root ::= other",
    }.items():
        yield member(f"ebnf-{name}", ask(params={"ebnf": ebnf}))
    yield member("two", ask(params={"regex": "a", "json_schema": "{}"}))
    yield member("tag", ask(params={"structural_tag": "{}"}))
    yield member("tag-junk", ask(params={"structural_tag": "junk"}))


def input_ids() -> Iterator[Member]:
    def given(ids: object, **more: object) -> dict:
        return {"input_ids": ids, "sampling_params": SHORT, **more}

    for name, ids in {
        "last": [VOCAB - 1] * 4,
        "outside": [5, VOCAB],
        "far-outside": [5, 10**6],
        "int32": [2**31],
        "int64": [2**63],
        "huge": [2**70],
        "negative": [-1, 5],
        "empty": [],
        "empty-nested": [[]],
        "nested": [[5, 6]],
        "two": [[5, 6], [7]],
        "one-empty": [[5, 6], []],
        "floats": [1.5, 2.5],
        "strings": ["5"],
        "nulls": [None],
        "bools": [True, False],
        "string": "567",
        "number": 5,
        "dict": {"0": 5},
        "image-tokens": [IMAGE] * 6,
        "vision-tokens": [VISION_START, IMAGE, VISION_END, 40],
        "video-token": [VISION_START, VIDEO, VISION_END, 40],
        "mask-token": [MASK, MASK, 40],
    }.items():
        yield member(name, given(ids))
    yield member("and-text", given([5, 6], text="Hello."))
    picture = encode(form(74))
    shown = [VISION_START, IMAGE, VISION_END]
    yield member("and-picture", given([*shown, 40, 41], image_data=[picture]))
    yield member("picture-no-token", given([40, 41], image_data=[picture]))
    yield member("picture-two-tokens", given([IMAGE, 40, IMAGE], image_data=[picture]))
    yield member("picture-outside", given([*shown, 9999], image_data=[picture]))


def logprobs() -> Iterator[Member]:
    for name, value in {
        "negative": -3,
        "vocabulary": VOCAB,
        "past-vocabulary": VOCAB + 1,
        "huge": 2**40,
        "float": 1.5,
        "string": "x",
    }.items():
        yield member(f"top-{name}", ask(return_logprob=True, top_logprobs_num=value))
        yield member(f"start-{name}", ask(return_logprob=True, logprob_start_len=value))
    for name, ids in {"outside": [VOCAB], "negative": [-1], "huge": [2**40], "empty": []}.items():
        yield member(f"ids-{name}", ask(return_logprob=True, token_ids_logprob=ids))
    yield member("ids-string", ask(return_logprob=True, token_ids_logprob="x"))
    yield member("flag-string", ask(return_logprob="x"))
    yield member("flag-list", ask(return_logprob=[True, False]))
    yield member("start-without-flag", ask(logprob_start_len=0, top_logprobs_num=3))
    yield member("start-at-zero", ask(return_logprob=True, logprob_start_len=0))


def chats() -> Iterator[Member]:
    picture = {"type": "image_url", "image_url": {"url": encode(form(75))}}

    def said(name: str, messages: object, **fields: object) -> Member:
        body = {"model": "m", "temperature": 0, "max_tokens": 8, "messages": messages, **fields}
        return member(name, body, "/v1/chat/completions")

    hello = [{"role": "user", "content": QUESTION}]
    yield said("no-messages", [])
    yield said("null-messages", None)
    yield said("string-messages", "Hello.")
    yield said("no-role", [{"content": "a"}])
    yield said("unknown-role", [{"role": "king", "content": "a"}])
    yield said("number-content", [{"role": "user", "content": 5}])
    yield said("null-content", [{"role": "user", "content": None}])
    yield said("empty-content", [{"role": "user", "content": ""}])
    yield said("empty-parts", [{"role": "user", "content": []}])
    for name, part in {
        "no-url": {"type": "image_url"},
        "null-url": {"type": "image_url", "image_url": {"url": None}},
        "string-url": {"type": "image_url", "image_url": picture["image_url"]["url"]},
        "bad-url": {"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}},
        "unknown-part": {"type": "smell", "smell": 1},
        "video": {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        "audio": {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
    }.items():
        yield said(name, [{"role": "user", "content": [part, {"type": "text", "text": READ}]}])
    yield said("typed-pad", [{"role": "user", "content": "<|image_pad|> " + READ}])
    both = [picture, {"type": "text", "text": "<|vision_start|><|image_pad|><|vision_end|>"}]
    yield said("typed-pad-beside-picture", [{"role": "user", "content": both}])
    yield said("system-picture", [{"role": "system", "content": [picture]}, *hello])
    for name, fields in {
        "logprobs-21": {"logprobs": True, "top_logprobs": 21},
        "logprobs-negative": {"logprobs": True, "top_logprobs": -1},
        "logprobs-huge": {"logprobs": True, "top_logprobs": 10**6},
        "format-unknown": {"response_format": {"type": "poem"}},
        "format-empty": {"response_format": {"type": "json_schema"}},
        "format-bad": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "colour"}},
            }
        },
        "tools-bad": {"tools": [{"type": "function"}]},
        "tokens-negative": {"max_tokens": -5},
        "tokens-both": {"max_tokens": 4, "max_completion_tokens": 6},
        "n-zero": {"n": 0},
        "bias-outside": {"logit_bias": {"100000": 5}},
        "seed-string": {"seed": "x"},
        "stop-number": {"stop": 5},
        "options": {"stream_options": {"include_usage": True}},
        "model-null": {"model": None},
    }.items():
        yield said(name, hello, **fields)


def bodies() -> Iterator[Member]:
    for name, raw in {
        "empty": b"",
        "cut": b'{"text": "a", "sampling_params"',
        "latin1": b'{"text": "caf\xe9", "sampling_params": {"max_new_tokens": 4}}',
        "overlong": b'{"text": "\xc0\xaf", "sampling_params": {"max_new_tokens": 4}}',
        "utf16": json.dumps(ask()).encode("utf-16"),
        "list": b"[]",
        "string": b'"text"',
        "null": b"null",
        "infinity": b'{"text": "a", "sampling_params": {"temperature": Infinity}}',
        "1e400": b'{"text": "a", "sampling_params": {"temperature": 1e400}}',
        "twice": b'{"text": "a", "text": "b", "sampling_params": {"max_new_tokens": 4}}',
        "deep": b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        "trailing": json.dumps(ask()).encode() + b"}",
        "control": b'{"text": "a\x01b", "sampling_params": {"max_new_tokens": 4}}',
        "form": b"text=a&max_new_tokens=4",
    }.items():
        yield member(name, raw)
    chat_path = "/v1/chat/completions"
    yield member("chat-empty", b"", chat_path)
    yield member("chat-list", b"[]", chat_path)
    yield member("chat-cut", b'{"messages": [', chat_path)
    yield member("completion-null", {"model": "m", "prompt": None}, "/v1/completions")
    yield member(
        "completion-empty", {"model": "m", "prompt": "", "max_tokens": 4}, "/v1/completions"
    )
    outside = {"model": "m", "prompt": [99999], "max_tokens": 4, "temperature": 0}
    yield member("completion-outside", outside, "/v1/completions")
