"""Sampling masks: which tokens each output token was drawn from. Plain decoding's, node by node."""

from __future__ import annotations

import pytest
from harness import (
    Answer,
    Ask,
    Plain,
    Server,
    ask_together,
    assert_identical,
    chat,
    chat_body,
    whole_chat,
)

MASK, LOGPROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
TOLERANCE = 5e-5  # as in test_logprobs.py
TEXT = {"text": chat("Describe a big red circle.")}
# Each leaves one token to draw, or ties that are broken alike: answers are plain decoding's.
CERTAIN = {
    "greedy": {},
    "one": {"temperature": 1.0, "top_k": 1},
    "top-p": {"temperature": 0.4, "top_k": 5, "top_p": 1e-6},
    "penalties": {"frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "end in a run": {"stop": ["a", "1"]},
    "limit": {"max_new_tokens": 17, "ignore_eos": True},
    "grammar": {"regex": r"([A-Z][a-z]+: [A-Z0-9.\-]+\n?){1,4}"},
}


def asking(request: dict, mode: str = "selected") -> dict:
    return {
        **request,
        "extra": {"return_sampling_mask": True, "sampling_logprobs_mode": mode},
    }


def values(answer: Answer) -> list[float]:
    rows = answer.meta[LOGPROBS]
    return [x for row in rows for x in (row if isinstance(row, list) else [row])]


def assert_same_masks(ours: list[Answer], expected: list[Answer]) -> None:
    assert_identical(ours, expected)
    for got, plain in zip(ours, expected, strict=True):
        assert got.meta[MASK] == plain.meta[MASK]
        assert len(got.meta[MASK]) == len(got.ids)
        assert values(got) == pytest.approx(values(plain), abs=TOLERANCE)


@pytest.mark.parametrize("control", CERTAIN)
def test_certain_requests(
    glance: Server, plain: Plain, questions: list[dict], control: str
) -> None:
    asked = [asking(questions[0]), asking(TEXT, "support")]
    sampling = CERTAIN[control]
    answers = [glance.generate(request, **sampling) for request in asked]
    assert_same_masks(answers, plain.answers(asked, **sampling))


def test_sampled_runs_have_the_support_of_every_token(glance: Server, plain: Plain) -> None:
    """Each token's support is that of plain decoding after the tokens before it."""
    sampling = {"temperature": 0.7, "top_k": 6, "top_p": 0.95}
    ours = glance.generate(asking(TEXT, "support"), max_new_tokens=24, ignore_eos=True, **sampling)
    prompt = plain.server.session.post(
        f"{plain.server.url}/tokenize", json={"prompt": TEXT["text"], "add_special_tokens": False}
    ).json()["tokens"]
    bodies = [
        {
            "input_ids": prompt + ours.ids[:place],
            "sampling_params": {"max_new_tokens": 1, "ignore_eos": True, **sampling},
            **asking({}, "support")["extra"],
        }
        for place in range(len(ours.ids))
    ]
    replies = [
        plain.server.session.post(f"{plain.server.url}/generate", json=body).json()
        for body in bodies
    ]
    expected = [reply["meta_info"] for reply in replies]
    assert ours.rounds < 24
    assert max(len(mask) for mask in ours.meta[MASK]) > 1
    assert ours.meta[MASK] == [mask for meta in expected for mask in meta[MASK]]
    for got, meta in zip(ours.meta[LOGPROBS], expected, strict=True):
        assert got == pytest.approx(meta[LOGPROBS][0], abs=TOLERANCE)
    assert all(token in mask for token, mask in zip(ours.ids, ours.meta[MASK], strict=True))


def test_in_a_batch_with_requests_that_want_none(
    glance: Server, plain: Plain, questions: list[dict]
) -> None:
    """Rows of the batch, of those that want a mask, and of those that want its support differ."""
    cold = CERTAIN["top-p"]
    asks: list[Ask] = [
        (questions[1], {}),
        (asking(questions[2], "support"), cold),
        (TEXT, cold),
        (asking(questions[5]), {}),
        (asking(questions[14], "support"), cold),
        (asking(TEXT), {"ignore_eos": True, "max_new_tokens": 40}),
    ]
    for _ in range(2):
        answers, expected = ask_together(glance, asks), plain.answers_to(asks)
        wants = [number for number, (request, _) in enumerate(asks) if "extra" in request]
        assert_identical(answers, expected)
        assert_same_masks([answers[i] for i in wants], [expected[i] for i in wants])
        assert MASK not in answers[0].meta


def test_streamed(glance: Server, plain: Plain, questions: list[dict]) -> None:
    asked = asking(questions[0], "support")
    chunks = list(glance.stream(asked))
    assert len(chunks) > 2
    for chunk in chunks:
        assert len(chunk.meta[MASK]) == len(chunk.ids)
    assert_same_masks(chunks[-1:], [plain.answer(asked)])


def test_chat_endpoint(glance: Server, plain: Plain, questions: list[dict]) -> None:
    wanted = {"return_sampling_mask": True, "return_meta_info": True}
    body = chat_body(questions[0], "Read all lines.", **wanted)
    ours, expected = (whole_chat(server, body) for server in (glance, plain.server))
    (ours,), (expected,) = ours["choices"], expected["choices"]
    assert ours["message"]["content"] == expected["message"]["content"]
    assert ours["meta_info"][MASK] == expected["meta_info"][MASK] != []


def test_without_a_bound_on_the_support(glance: Server, plain: Plain) -> None:
    body = {**TEXT, "return_sampling_mask": True, "sampling_params": {"temperature": 1.0}}
    ours, expected = (
        server.session.post(f"{server.url}/generate", json=body)
        for server in (glance, plain.server)
    )
    assert (ours.status_code, ours.json()) == (expected.status_code, expected.json())
    assert ours.status_code == 400
