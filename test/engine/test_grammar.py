"""Structured output: the grammar's mask at every node of the tree, plain decoding's tokens."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.floors import ACCEPT_LEN_GRAMMAR
from builders.shipped import BLANKS, token
from harness import (
    PLAIN,
    READER,
    Answer,
    Ask,
    Plain,
    Server,
    ask_together,
    assert_identical,
    assert_no_slot_lost,
    chat,
    chat_body,
    glance_flags,
    start,
    tokens_per_round,
    whole_chat,
)
from probing import Probe

FIELDS = {
    "name": {"type": "string", "maxLength": 12},
    "total": {"type": "integer", "minimum": 0, "maximum": 9999},
    "kind": {"enum": ["chart", "form", "scene"]},
}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": FIELDS,
        "required": list(FIELDS),
        "additionalProperties": False,
    }
)
LINES = r"([A-Z][A-Za-z]+: [A-Z0-9.\-]+\n?){1,4}"  # what the reader writes of a chart, often
NO_DIGITS = r"[^0-9]{1,60}"
ANYTHING = r"[ -~\n]*"
EBNF = 'root ::= line+\nline ::= [A-Z] [a-z]+ ": " [A-Z0-9.]+ "\\n"?\n'
# Without these the reader, which knows no JSON, fills any gap that a schema allows.
NO_BLANKS = {"logit_bias": {str(token): -100 for token in BLANKS}}
GRAMMARS = {
    "schema": {"json_schema": SCHEMA, **NO_BLANKS},
    "loose-schema": {"json_schema": SCHEMA, "max_new_tokens": 24},
    "lines": {"regex": LINES},
    "no-digits": {"regex": NO_DIGITS},
    "ebnf": {"ebnf": EBNF},
}
TEXTS = [
    {"text": chat("Name: PARIS\nTotal: 12.50\nRead all lines.")},
    {"text": chat("Describe a big red circle beside a small blue box.")},
]


class Pair(NamedTuple):
    plain: Plain
    server: Server


@pytest.fixture(scope="session")
def llguidance(logs: Path) -> Iterator[Callable[[str], Server]]:
    """Servers with the other grammar backend, each started when first asked for."""
    kinds = {
        "plain": PLAIN,
        "tree": glance_flags(),
        "chain": glance_flags(topk=1),
    }
    running: dict[str, Server] = {}
    with contextlib.ExitStack() as stack:

        def server(kind: str) -> Server:
            if kind not in running:
                flags = (*kinds[kind], "--grammar-backend", "llguidance")
                log = logs / f"llguidance-{kind}.log"
                running[kind] = stack.enter_context(start(READER, log, *flags))
            return running[kind]

        yield server


@pytest.fixture(scope="session")
def plain_llguidance(llguidance: Callable[[str], Server]) -> Plain:
    return Plain(llguidance("plain"))


@pytest.fixture(
    params=[
        "xgrammar-tree",
        pytest.param("xgrammar-chain", marks=pytest.mark.slow),
        pytest.param("llguidance-tree", marks=pytest.mark.slow),
        pytest.param("llguidance-chain", marks=pytest.mark.slow),
    ]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    backend, shape = request.param.split("-")
    if backend == "llguidance":
        start_server = request.getfixturevalue("llguidance")
        return Pair(request.getfixturevalue("plain_llguidance"), start_server(shape))
    server = request.getfixturevalue({"tree": "glance", "chain": "chain"}[shape])
    return Pair(request.getfixturevalue("plain"), server)


@pytest.fixture(scope="module")
def requests(questions: list[dict]) -> list[dict]:
    """A chart whose answer fits ``LINES``, a form, an infographic, a caption, two texts."""
    return [questions[number] for number in (4, 3, 9, 16)] + TEXTS


def drafted_beyond(answer: Answer) -> int:
    """Tokens that verify accepted behind the answer's end."""
    accepted = answer.rounds + answer.meta["spec_num_correct_drafts"]
    return accepted - (len(answer.ids) - 1)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_one_at_a_time(pair: Pair, requests: list[dict], grammar: str) -> None:
    sampling = GRAMMARS[grammar]
    answers = [pair.server.generate(request, **sampling) for request in requests]
    assert_identical(answers, pair.plain.answers(requests, **sampling))
    for answer in answers:
        if "regex" in sampling and answer.meta["finish_reason"]["type"] == "stop":
            assert re.fullmatch(sampling["regex"], answer.text)
        if grammar == "schema":
            assert set(json.loads(answer.text)) == set(FIELDS)


def test_what_the_grammar_allows_is_still_drafted(pair: Pair, requests: list[dict]) -> None:
    """No one-token rounds because of a grammar: the chart fits, in runs as without one."""
    chart = requests[0]
    bound, free = pair.server.generate(chart, regex=LINES), pair.server.generate(chart)
    assert bound.ids == free.ids
    assert bound.rounds == free.rounds
    assert tokens_per_round([bound]) > ACCEPT_LEN_GRAMMAR


def test_batch_of_grammars_and_free_requests(pair: Pair, questions: list[dict]) -> None:
    """Pictures and texts, with and without a grammar, together: each its own solo answer."""
    asks: list[Ask] = [
        (questions[0], GRAMMARS["schema"]),
        (questions[1], {}),
        (TEXTS[0], {"regex": LINES}),
        (TEXTS[1], {}),
        (questions[3], {"ebnf": EBNF}),
        (questions[14], {"ignore_eos": True}),
        (TEXTS[1], {"regex": NO_DIGITS, "ignore_eos": False}),
        (questions[5], {"stop": ["\n"]}),
    ]
    for _ in range(2):
        assert_identical(ask_together(pair.server, asks), pair.plain.answers_to(asks))


def test_grammar_under_other_controls(pair: Pair, requests: list[dict]) -> None:
    controls = [
        {"logit_bias": {str(token("1")): 3.0, str(token("2")): -2.0}},
        {"stop_token_ids": [token(":")]},
        {"stop": ["\n"]},
        {"stop": ["0"], "max_new_tokens": 14},
        {"frequency_penalty": 0.5, "presence_penalty": 0.2},
        {"repetition_penalty": 1.2},
        {"min_new_tokens": 20},
    ]
    for control in controls:
        asks = [(request, {"regex": LINES, **control}) for request in requests[::2]]
        assert_identical(ask_together(pair.server, asks), pair.plain.answers_to(asks))


def test_sampled_requests_keep_to_the_grammar(pair: Pair, requests: list[dict]) -> None:
    sampling = {"temperature": 1.5, "max_new_tokens": 200}
    asks = [(request, {"regex": LINES, **sampling}) for request in requests]
    asks += [(requests[0], {"json_schema": SCHEMA, **NO_BLANKS, **sampling})]
    asks += [(requests[1], {"regex": NO_DIGITS})]
    *lines, schema, greedy = ask_together(pair.server, asks)
    ended = [answer for answer in lines if answer.meta["finish_reason"]["type"] == "stop"]
    assert ended and all(re.fullmatch(LINES, answer.text) for answer in ended)
    assert set(json.loads(schema.text)) == set(FIELDS)
    assert_identical([greedy], [pair.plain.answer(requests[1], regex=NO_DIGITS)])


def test_grammar_that_ends_inside_an_accepted_run(pair: Pair, questions: list[dict]) -> None:
    """The tree holds EOS and tokens behind it, at every place of the run: the answer ends there,
    and what was accepted behind it leaves nothing in the cache or the grammar."""
    form = questions[0]
    whole = pair.plain.answer(form)
    beyond = 0
    for given in range(1, len(whole.text), 4):
        request = {**form, "text": form["text"] + whole.text[:given]}
        answer = pair.server.generate(request, regex=ANYTHING)
        assert_identical([answer], [pair.plain.answer(request, regex=ANYTHING)])
        beyond += drafted_beyond(answer) > 0
    assert beyond >= 3


def test_grammar_that_ends_before_the_drafts_do(pair: Pair, questions: list[dict]) -> None:
    """The grammar is the answer's beginning: behind it only EOS, whatever was drafted."""
    form = questions[0]
    whole = pair.plain.answer(form)
    for end in range(3, len(whole.text), 8):
        start_of_it = {"ebnf": f"root ::= {json.dumps(whole.text[:end])}"}
        answer = pair.server.generate(form, **start_of_it)
        assert_identical([answer], [pair.plain.answer(form, **start_of_it)])
        assert answer.text == whole.text[:end]


def test_eos_that_is_to_be_ignored(pair: Pair, requests: list[dict]) -> None:
    sampling = {"regex": LINES, "ignore_eos": True, "max_new_tokens": 48}
    answers = [pair.server.generate(request, **sampling) for request in requests]
    assert_identical(answers, pair.plain.answers(requests, **sampling))


def test_masks_on_side_branches(probe: Probe, plain: Plain, questions: list[dict]) -> None:
    """The right token is the last of its siblings: every mask but the root's is a side branch's."""
    requests = [questions[number] for number in (0, 3, 9)] + TEXTS
    seen = len(probe.of("path"))
    for sampling in GRAMMARS.values():
        asks = [(request, sampling) for request in requests]
        assert_identical(ask_together(probe.server, asks), plain.answers_to(asks))
    paths = [path for row in probe.of("path")[seen:] for path in row["nodes"]]
    assert sum(2 in path for path in paths) >= 50  # node 2: the root's last child


def test_schema_of_the_chat_endpoint(pair: Pair, questions: list[dict]) -> None:
    schema = {"name": "form", "schema": json.loads(SCHEMA)}
    asked = {"type": "json_schema", "json_schema": schema}
    body = chat_body(questions[0], "Read all lines.", response_format=asked, **NO_BLANKS)
    ours, plain = (whole_chat(server, body) for server in (pair.server, pair.plain.server))
    assert ours["choices"] == plain["choices"]
    assert set(json.loads(ours["choices"][0]["message"]["content"])) == set(FIELDS)
    assert ours["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "broken",
    [{"regex": "(["}, {"json_schema": '{"type": 3'}, {"ebnf": 'root ::= "a'}],
    ids=lambda broken: next(iter(broken)),
)
def test_broken_grammar_is_refused(pair: Pair, requests: list[dict], broken: dict) -> None:
    body = {"text": chat("Hello."), "sampling_params": {"max_new_tokens": 4, **broken}}
    reply = pair.server.session.post(f"{pair.server.url}/generate", json=body, timeout=60)
    assert reply.status_code == 400
    assert_identical([pair.server.generate(requests[0])], [pair.plain.answer(requests[0])])


def test_no_slot_is_lost(pair: Pair) -> None:
    assert_no_slot_lost(pair.server)
