"""Sampled answers follow plain decoding's law, from trees with siblings and from chains."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.fit import Fit, fit
from builders.sampled import LENGTH, Controls, ask, contexts, distribution
from harness import READER, Plain, Server, ask_together, assert_identical, chat, glance_flags, start
from probing import entry_point

DRAWS, AT_ONCE = 2000, 250
TEMPERATURE = Controls(top_k=6)


@pytest.fixture(scope="module")
def text() -> dict:
    """A question that leaves the reader in doubt for several tokens."""
    return {"text": chat("Say nothing. " * 8)}


def everything(known: dict) -> Controls:
    """All controls whose effect on a distribution follows from log-probabilities alone."""
    first, second, *_ = known[()]
    return Controls(
        top_k=8,
        temperature=1.2,
        top_p=0.92,
        min_p=0.03,
        frequency_penalty=0.6,
        presence_penalty=0.5,
        logit_bias={str(first): -0.7, str(second): 0.6},
    )


def draw(server: Server, request: dict, controls: Controls) -> tuple[list[tuple], float]:
    """Answers, and the tokens a round gave after the prefill's."""
    replies = []
    for _ in range(DRAWS // AT_ONCE):
        replies += ask(server, request, AT_ONCE, controls.params())
    rounds = sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)
    return [tuple(reply["output_ids"]) for reply in replies], DRAWS * (LENGTH - 1) / rounds


def judge(answers: list[tuple], known: dict, controls: Controls) -> Fit:
    expected, laws = distribution(known, controls)
    assert sum(expected.values()) > 0.95  # what was not enumerated is little
    for answer in answers:
        for place, token in enumerate(answer):
            if answer[:place] in laws:
                assert token in laws[answer[:place]], f"{answer} cannot be drawn"
    return fit(answers, expected)


def follows(server: Server, request: dict, known: dict, controls: Controls) -> float:
    """Assert that answers have the law of `controls`; the tokens a round gave."""
    answers, tokens_a_round = draw(server, request, controls)
    found = judge(answers, known, controls)
    assert found.num_cells >= 10 and found.by_chi_square and found.by_distance, found
    return tokens_a_round


def test_trees_follow_the_target(glance: Server, plain: Plain, text: dict) -> None:
    known = contexts(plain.server, text, TEMPERATURE.top_k)
    assert follows(glance, text, known, TEMPERATURE) > 1


@pytest.mark.slow
def test_chains_follow_the_target(glance: Server, chain: Server, plain: Plain, text: dict) -> None:
    known = contexts(plain.server, text, TEMPERATURE.top_k)
    by_chain = follows(chain, text, known, TEMPERATURE)
    # Siblings of the tree are accepted where the first candidate is not.
    assert follows(glance, text, known, TEMPERATURE) > by_chain > 1


def test_pictures_follow_the_target(glance: Server, plain: Plain, prompts: list[dict]) -> None:
    request = next(r for r in prompts if r.get("images") and "Describe" in r["text"])
    known = contexts(plain.server, request, top_k=6)
    assert follows(glance, request, known, TEMPERATURE) > 1


def test_every_control_at_once(glance: Server, plain: Plain, text: dict) -> None:
    known = contexts(plain.server, text, top_k=12)
    controls = everything(known)
    answers, tokens_a_round = draw(glance, text, controls)
    found = judge(answers, known, controls)
    assert found.num_cells >= 10 and found.by_chi_square and found.by_distance, found
    assert tokens_a_round > 1
    without, _ = distribution(known, Controls(top_k=controls.top_k))
    assert not fit(answers, without).by_chi_square  # the controls did change it


@pytest.mark.slow
def test_a_wrong_rule_on_the_server_is_caught(plain: Plain, text: dict, tmp_path: Path) -> None:
    """A server whose walk takes each node's likeliest draft without asking the target."""
    env = {"PYTHONPATH": entry_point(tmp_path, "wrong_rule:register")}
    known = contexts(plain.server, text, top_k=6)
    with start(READER, tmp_path / "server.log", *glance_flags(), env=env) as server:
        answers, tokens_a_round = draw(server, text, TEMPERATURE)
    assert tokens_a_round == LENGTH - 1
    found = fit(answers, distribution(known, TEMPERATURE)[0])
    assert not found.by_chi_square and not found.by_distance, found


def test_greedy_and_sampled_requests_in_one_batch(
    glance: Server, plain: Plain, prompts: list[dict]
) -> None:
    """Every kind of sampled neighbour at once; greedy ids stay, sampled ones differ."""
    greedy = {"max_new_tokens": 48, "ignore_eos": True}
    kinds = [{}, {"top_k": 5}, {"top_p": 0.8, "frequency_penalty": 0.5}, {"min_p": 0.1}]
    sampled = [(prompts[n], greedy | {"temperature": 1.5} | kind) for n, kind in enumerate(kinds)]
    for _ in range(2):
        answers = ask_together(glance, [(prompts[n], greedy) for n in range(4)] + sampled)
        assert_identical(answers[:4], plain.answers(prompts[:4], **greedy))
        assert all(a.ids != b.ids for a, b in zip(answers[4:], answers[:4]))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"return_sampling_mask": True, "sampling_params": {"top_k": 4}}, "return_sampling_mask"),
        ({"sampling_params": {"beam_width": 2}}, "beam search"),
        ({"watermark": {"enabled": True}}, "watermark"),
    ],
    ids=["return_sampling_mask", "beam_width", "watermark"],
)
def test_what_cannot_be_honoured_is_refused(
    glance: Server, plain: Plain, prompts: list[dict], body: dict, named: str
) -> None:
    reply = glance.session.post(
        f"{glance.url}/generate", json={"text": chat("Hello."), **body}, timeout=60
    )
    assert reply.status_code == 400
    assert named in reply.text.lower()
    assert_identical([glance.generate(prompts[0])], [plain.answer(prompts[0])])
