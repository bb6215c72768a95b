"""Streams: parts that join to the whole, whole characters, counts that add up."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from builders.heads import config_of, constant_head
from harness import (
    HEAD,
    READER,
    Answer,
    Plain,
    Server,
    assert_identical,
    chat,
    chat_body,
    glance_flags,
    start,
    whole_chat,
)

# The reader's tokenizer spells these byte by byte: two, three and four tokens a character.
MANY_BYTES = "Größe 12 €, 日本語 😀é😀 ñ."
SPELLED = {"ebnf": f'root ::= "{MANY_BYTES}"'}


@pytest.fixture(scope="module")
def requests(questions: list[dict]) -> list[dict]:
    return [questions[0], questions[9], questions[14], {"text": chat("Describe a red circle.")}]


def assert_grows(chunks: list[Answer], whole: Answer) -> None:
    """Every part continues the one before, no character is halved, counts are those of the ids."""
    assert_identical(chunks[-1:], [whole])
    for before, after in zip(chunks, chunks[1:]):
        assert after.text.startswith(before.text)
        assert after.ids[: len(before.ids)] == before.ids
        assert before.meta["finish_reason"] is None
    for chunk in chunks:
        assert "\ufffd" not in chunk.text
        assert chunk.meta["completion_tokens"] == len(chunk.ids)
        assert chunk.meta["prompt_tokens"] == whole.meta["prompt_tokens"]


def streamed_chat(server: Server, body: dict) -> list[dict]:
    body = {**body, "stream": True}
    url = f"{server.url}/v1/chat/completions"
    with server.session.post(url, json=body, stream=True, timeout=300) as reply:
        lines = [line[6:] for line in reply.iter_lines() if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("interval", [1, 3, 1000])
def test_any_interval(served: Server, plain: Plain, requests: list[dict], interval: int) -> None:
    for request in requests:
        chunks = list(served.stream(request, stream_interval=interval))
        assert_grows(chunks, plain.answer(request))
        assert len(chunks) <= 2 + len(chunks[-1].ids) / interval


@pytest.mark.parametrize("interval", [1, 3])
def test_characters_of_many_tokens(
    served: Server, plain: Plain, requests: list[dict], interval: int
) -> None:
    for request in requests[::3]:
        chunks = list(served.stream(request, stream_interval=interval, **SPELLED))
        assert_grows(chunks, plain.answer(request, **SPELLED))
        assert chunks[-1].text == MANY_BYTES


def test_character_cut_by_the_limit(served: Server, plain: Plain, requests: list[dict]) -> None:
    """Plain decoding's text ends in a replacement character there, and so does ours."""
    halves = 0
    for limit in (3, 5, 8, 13, 20, 23, 28):
        whole = plain.answer(requests[0], max_new_tokens=limit, **SPELLED)
        chunks = list(served.stream(requests[0], max_new_tokens=limit, **SPELLED))
        assert_identical(chunks[-1:], [whole])
        assert all("\ufffd" not in chunk.text for chunk in chunks[:-1])
        halves += "\ufffd" in whole.text
    assert halves >= 4


def test_stop_string_over_two_parts(served: Server, plain: Plain, requests: list[dict]) -> None:
    """Three characters of the answer, wherever a run may split them: none is shown in advance."""
    request = requests[0]
    text = plain.answer(request).text
    for stop in sorted({text[i : i + 3] for i in range(0, len(text) - 2, 4)}):
        whole = plain.answer(request, stop=stop)
        assert whole.text == text[: text.find(stop)]
        assert_grows(list(served.stream(request, stop=stop)), whole)


def test_chat_with_a_picture(served: Server, plain: Plain, questions: list[dict]) -> None:
    """Joined parts are the reply of one piece, here and without speculation."""
    for question in (questions[0], questions[9]):
        prompt = question["text"].split("<|vision_end|>")[1].split("<|im_end|>")[0]
        body = chat_body(question, prompt)
        whole = whole_chat(plain.server, body)
        assert whole_chat(served, body)["choices"] == whole["choices"]
        options = {"include_usage": True, "continuous_usage_stats": True}
        parts = streamed_chat(served, {**body, "stream_options": options})
        choices = [choice for part in parts for choice in part["choices"]]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert said == whole["choices"][0]["message"]["content"]
        ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert ends == [whole["choices"][0]["finish_reason"]]
        # Of three at most here: what waits to be sent together is sent as one.
        assert len([choice for choice in choices if choice["delta"].get("content")]) > 1
        assert_usage([part["usage"] for part in parts if part.get("usage")], whole["usage"])


def assert_usage(parts: list[dict], whole: dict) -> None:
    """Prompt + completion = total throughout; completions never shrink and end at the whole."""
    assert len(parts) > 2
    counts = [usage["completion_tokens"] for usage in parts]
    assert counts == sorted(counts)
    assert counts[-1] == whole["completion_tokens"]
    for usage in parts:
        assert usage["prompt_tokens"] == whole["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_chat_of_many_bytes(served: Server, plain: Plain, questions: list[dict]) -> None:
    body = chat_body(questions[0], "Read all lines.", **SPELLED)
    assert whole_chat(plain.server, body)["choices"][0]["message"]["content"] == MANY_BYTES
    parts = streamed_chat(served, body)
    said = [c["delta"].get("content") or "" for part in parts for c in part["choices"]]
    assert "".join(said) == MANY_BYTES
    assert all("\ufffd" not in part for part in said)


def test_two_answers_in_one_stream(served: Server, plain: Plain, questions: list[dict]) -> None:
    body = chat_body(questions[0], "Read all lines.", n=2, stream_options={"include_usage": True})
    parts = streamed_chat(served, body)
    whole = whole_chat(plain.server, body)
    said = {0: "", 1: ""}
    for part in parts:
        for choice in part["choices"]:
            said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == {c["index"]: c["message"]["content"] for c in whole["choices"]}
    assert parts[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A head that drafts the four bytes of 😀 and nothing else, in every order."""
    folder = tmp_path_factory.mktemp("bytewise")
    emoji = (172, 253, 246, 222)
    head = constant_head(config_of(HEAD), READER, folder / "head", emoji)
    flags = glance_flags(head, budget=64, topk=4)
    with start(READER, folder / "server.log", *flags) as server:
        yield server


@pytest.mark.slow
def test_runs_that_end_inside_a_character(
    bytewise: Server, plain: Plain, requests: list[dict]
) -> None:
    smiles = {"ebnf": 'root ::= "😀" "😀" "a"? "😀" "😀" "😀" "é" "😀" "😀" "😀"'}
    for request in requests:
        whole = plain.answer(request, **smiles)
        chunks = list(bytewise.stream(request, **smiles))
        assert_grows(chunks, whole)
        sizes = [len(b.ids) - len(a.ids) for a, b in zip(chunks, chunks[1:])]
        assert max(sizes) >= 3  # runs of bytes were accepted
