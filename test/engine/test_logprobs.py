"""Log-probabilities: an entry a token, plain decoding's values, whatever branch it came from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from builders.shipped import token
from harness import (
    READER,
    Answer,
    Ask,
    Plain,
    Server,
    ask_together,
    chat,
    chat_body,
    glance_flags,
    start,
    whole_chat,
)
from logprobs import EVERYTHING, INPUT, OUTPUT, SOME_IDS, TOLERANCE, TOP, assert_same_logprobs
from probing import Probe

TEXTS = [{"text": chat(text)} for text in ("Describe a big red circle.", "Name: PARIS\nRead it.")]
# What moves a distribution, and what ends a run early. The cold one samples, and always the best
# token; its log-probabilities are those at that temperature.
CONTROLS = {
    "greedy": {},
    "long": {"ignore_eos": True, "max_new_tokens": 40},
    "limit": {"max_new_tokens": 17},
    "stop": {"stop": ["a", "1"]},
    "cold": {"temperature": 0.4, "top_p": 1e-6},
    "bias": {"logit_bias": {str(token("1")): 3.0, str(token("2")): -2.0}},
    "penalties": {"frequency_penalty": 0.4, "presence_penalty": 0.2},
    "repetition": {"repetition_penalty": 1.3},
    "grammar": {"regex": r"([A-Z][a-z]+: [A-Z0-9.\-]+\n?){1,4}"},
}


def asking(requests: Sequence[dict], **extra: object) -> list[dict]:
    return [{**request, "extra": extra} for request in requests]


@pytest.fixture(scope="module")
def requests(questions: list[dict]) -> list[dict]:
    return [questions[0], questions[14], TEXTS[0]]


@pytest.mark.parametrize("control", CONTROLS)
def test_every_token_has_its_entry(
    served: Server, plain: Plain, requests: list[dict], control: str
) -> None:
    asked = asking(requests, **EVERYTHING)
    answers = [served.generate(request, **CONTROLS[control]) for request in asked]
    assert_same_logprobs(answers, plain.answers(asked, **CONTROLS[control]))
    for answer in answers:
        assert [token for _, token, _ in answer.meta[OUTPUT[0]]] == answer.ids
        assert [len(row) for row in answer.meta[OUTPUT[1]]] == [TOP] * len(answer.ids)
        assert [len(row) for row in answer.meta[OUTPUT[2]]] == [len(SOME_IDS)] * len(answer.ids)
        assert len(answer.meta[INPUT[0]]) == answer.meta["prompt_tokens"]


def test_prompt_from_the_middle(served: Server, plain: Plain, requests: list[dict]) -> None:
    """From a place that the cache holds, twice, so that the prefix is cached the second time."""
    asked = asking(requests, return_logprob=True, logprob_start_len=9, top_logprobs_num=2)
    for _ in range(2):
        answers = [served.generate(request) for request in asked]
        assert_same_logprobs(answers, plain.answers(asked))


def test_mixed_batch(served: Server, plain: Plain, questions: list[dict]) -> None:
    """Each request asks for something else, some for nothing; greedy and cold ones together."""
    some = {"return_logprob": True, "token_ids_logprob": [3, 500]}
    asks: list[Ask] = [
        ({**questions[0], "extra": EVERYTHING}, {}),
        ({**TEXTS[0], "extra": {"return_logprob": True}}, CONTROLS["long"]),
        (questions[1], {}),
        ({**questions[14], "extra": some}, CONTROLS["cold"]),
        ({**TEXTS[1], "extra": {"return_logprob": True, "top_logprobs_num": 2}}, {}),
        ({**questions[5], "extra": EVERYTHING}, CONTROLS["grammar"]),
        (TEXTS[1], CONTROLS["cold"]),
        ({**questions[2], "extra": some}, CONTROLS["penalties"]),
    ]
    for _ in range(2):
        answers = ask_together(served, asks)
        assert_same_logprobs(answers, plain.answers_to(asks))
    assert "output_token_logprobs" not in answers[2].meta


def test_tokens_from_side_branches(probe: Probe, plain: Plain, requests: list[dict]) -> None:
    """The drafter puts the right token last among its siblings, and prompts come in chunks."""
    seen = len(probe.of("path"))
    asked = asking(requests, **EVERYTHING)
    for sampling in (CONTROLS["long"], CONTROLS["cold"], CONTROLS["penalties"]):
        asks = [(request, sampling) for request in asked]
        assert_same_logprobs(ask_together(probe.server, asks), plain.answers_to(asks))
    paths = [path for row in probe.of("path")[seen:] for path in row["nodes"]]
    assert sum(len(path) >= 3 and path[1] == 2 and path[2] == 6 for path in paths) >= 10


def test_two_answers_to_one_request(served: Server, plain: Plain, questions: list[dict]) -> None:
    body = {
        "text": questions[1]["text"],
        "image_data": questions[1]["images"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 64, "n": 2},
        **EVERYTHING,
    }
    replies = served.session.post(f"{served.url}/generate", json=body, timeout=300).json()
    answers = [Answer(reply["output_ids"], reply["text"], reply["meta_info"]) for reply in replies]
    (asked,) = asking([questions[1]], **EVERYTHING)
    assert len(answers) == 2
    # The second starts at the prompt's last token, which the first has cached: compare the output.
    for answer in answers:
        for meta in (answer.meta, plain.answer(asked).meta):
            assert len(meta[OUTPUT[0]]) == len(answer.ids)
        assert [token for _, token, _ in answer.meta[OUTPUT[0]]] == plain.answer(asked).ids


def test_streamed(served: Server, plain: Plain, questions: list[dict]) -> None:
    (asked,) = asking([questions[0]], **EVERYTHING)
    chunks = list(served.stream(asked))
    assert len(chunks) > 2
    for chunk in chunks:
        assert [token for _, token, _ in chunk.meta[OUTPUT[0]]] == chunk.ids
        assert len(chunk.meta[OUTPUT[1]]) == len(chunk.ids)
    assert_same_logprobs(chunks[-1:], [plain.answer(asked)])


def test_chat_endpoint(served: Server, plain: Plain, questions: list[dict]) -> None:
    asked = {"max_tokens": 40, "logprobs": True, "top_logprobs": 3}
    body = chat_body(questions[0], "Read all lines.", **asked)
    ours, expected = (whole_chat(server, body) for server in (served, plain.server))
    assert len(ours["choices"][0]["logprobs"]["content"]) == ours["usage"]["completion_tokens"]
    for a, b in zip(
        ours["choices"][0]["logprobs"]["content"],
        expected["choices"][0]["logprobs"]["content"],
        strict=True,
    ):
        assert a["token"] == b["token"]
        assert a["logprob"] == pytest.approx(b["logprob"], abs=TOLERANCE)
        assert [top["token"] for top in a["top_logprobs"]] == [
            top["token"] for top in b["top_logprobs"]
        ]


NO_TOKEN = {
    "nothing": {},
    "values": {"return_logprob": True},
    "top": {"return_logprob": True, "top_logprobs_num": TOP},
    "some ids": {"return_logprob": True, "token_ids_logprob": SOME_IDS},
    "prompt": {"return_logprob": True, "logprob_start_len": 0},
    "prompt from the middle": {**EVERYTHING, "logprob_start_len": 9},
    "everything": EVERYTHING,
}
BEFORE_A_TOKEN = ("greedy", "bias", "penalties", "grammar", "stop")


@pytest.mark.parametrize("limit", [0, 1])
def test_no_token_and_one_token(
    served: Server, plain: Plain, requests: list[dict], limit: int
) -> None:
    """A request for no token is scored, and none is drawn: it has no output value, and top values
    from before its temperature."""
    controls = [CONTROLS[name] for name in BEFORE_A_TOKEN]
    # Tokens that are drawn differ.
    controls.append({"temperature": 0.7} if limit == 0 else CONTROLS["cold"])
    for extra, request in itertools.product(NO_TOKEN.values(), (requests[0], requests[2])):
        (asked,) = asking([request], **extra)
        answer = served.generate(asked, max_new_tokens=limit)
        *_, streamed = served.stream(asked, max_new_tokens=limit)
        expected = plain.answer(asked, max_new_tokens=limit)
        assert_same_logprobs([answer, streamed], [expected] * 2)
        assert len(answer.meta.get(OUTPUT[0], [])) == (limit if extra else 0)
    for control in controls:
        sampling = {**control, "max_new_tokens": limit}
        asked = asking(requests[:2], **EVERYTHING)
        answers = [served.generate(request, **sampling) for request in asked]
        assert_same_logprobs(answers, plain.answers(asked, **sampling))


def test_no_token_beside_others(served: Server, plain: Plain, requests: list[dict]) -> None:
    asked = asking(requests, **EVERYTHING)
    asks: list[Ask] = [(request, {"max_new_tokens": n}) for request in asked for n in (0, 24)]
    for ours, expected in zip(ask_together(served, asks), plain.answers_to(asks), strict=True):
        assert ours.ids == expected.ids
        assert ours.meta["completion_tokens"] == len(ours.ids)


def test_no_token_of_a_chat(served: Server, plain: Plain, questions: list[dict]) -> None:
    for asked in ({}, {"logprobs": True, "top_logprobs": 2}):
        body = chat_body(questions[0], "Read all lines.", **asked, max_tokens=0)
        ours, expected = (whole_chat(server, body) for server in (served, plain.server))
        assert ours["choices"] == expected["choices"]
        assert ours["usage"] == expected["usage"]


@pytest.mark.slow
def test_before_temperature_where_the_host_is_told_so(
    tmp_path_factory: pytest.TempPathFactory, requests: list[dict]
) -> None:
    env = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}
    folder = tmp_path_factory.mktemp("original")
    asked = asking(requests, **EVERYTHING)
    answers = []
    for name, flags in (("plain", ("--dtype", "float32")), ("glance", glance_flags())):
        with start(READER, folder / f"{name}.log", *flags, env=env) as server:
            answers.append([server.generate(request, **CONTROLS["cold"]) for request in asked])
    plain, ours = answers
    assert_same_logprobs(ours, plain)
