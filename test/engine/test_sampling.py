"""Sampled answers follow plain decoding's law, from trees with siblings and from chains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders.fit import Fit, fit
from builders.floors import ACCEPT_LEN_SAMPLED, reached
from builders.sampled import LENGTH, Controls, ask, contexts, distribution
from harness import READER, Plain, Server, ask_together, assert_identical, chat, glance_flags, start
from probing import Probe, entry_point

AT_ONCE = 250
TEMPERATURE = Controls(top_k=6)
HOT = Controls(top_k=6, temperature=3.0)  # the target takes what the head holds for unlikely


@pytest.fixture(scope="module")
def text() -> dict:
    """A question without its picture: the reader doubts several tokens, and not all of them."""
    return {"text": chat("What do the signs say?")}


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


def draw(
    server: Server, request: dict, controls: Controls, num: int = 2000
) -> tuple[list[tuple], float]:
    """Answers, and the tokens a round gave after the prefill's."""
    replies = []
    while len(replies) < num:
        replies += ask(server, request, AT_ONCE, controls.params())
    rounds = sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)
    tokens_a_round = reached("tokens a round", len(replies) * (LENGTH - 1) / rounds)
    return [tuple(reply["output_ids"]) for reply in replies], tokens_a_round


def judge(answers: list[tuple], known: dict, controls: Controls) -> Fit:
    expected, laws = distribution(known, controls)
    assert sum(expected.values()) > 0.95  # what was not enumerated is little
    for answer in answers:
        for place, token in enumerate(answer):
            if answer[:place] in laws:
                assert token in laws[answer[:place]], f"{answer} cannot be drawn"
    return fit(answers, expected)


@pytest.fixture(scope="module")
def known(plain: Plain, text: dict) -> dict:
    return contexts(plain.server, text, top_k=8, temperature=HOT.temperature)


def follows(
    server: Server, request: dict, known: dict, controls: Controls, num: int = 2000
) -> None:
    """Answers have the law of `controls`, and branches gave part of them."""
    answers, tokens_a_round = draw(server, request, controls, num)
    found = judge(answers, known, controls)
    assert found.num_cells >= 4 and found.by_chi_square and found.by_distance, found
    assert tokens_a_round > ACCEPT_LEN_SAMPLED


def test_siblings_follow_the_target(probe: Probe, text: dict, known: dict) -> None:
    """Every node of this server's trees has two children, and the likelier one is the second."""
    before = len(probe.of("path"))
    follows(probe.server, text, known, HOT)
    paths = [nodes for row in probe.of("path")[before:] for nodes in row["nodes"]]
    children = [nodes[1] for nodes in paths if len(nodes) > 1]
    assert min(children.count(1), children.count(2)) > 20


@pytest.mark.slow
def test_trees_follow_the_target(glance: Server, text: dict, known: dict) -> None:
    follows(glance, text, known, TEMPERATURE, num=1000)


@pytest.mark.slow
def test_chains_follow_the_target(chain: Server, text: dict, known: dict) -> None:
    follows(chain, text, known, TEMPERATURE)


def test_pictures_follow_the_target(glance: Server, plain: Plain, prompts: list[dict]) -> None:
    request = next(r for r in prompts if r.get("images") and "Describe" in r["text"])
    known = contexts(plain.server, request, TEMPERATURE.top_k)
    follows(glance, request, known, TEMPERATURE, num=750)


@pytest.mark.slow
def test_text_and_pictures_together_follow_the_target(
    served: Server, plain: Plain, prompts: list[dict], text: dict, known: dict
) -> None:
    picture = next(r for r in prompts if r.get("images") and "Describe" in r["text"])
    seen = contexts(plain.server, picture, TEMPERATURE.top_k)
    with ThreadPoolExecutor(2) as pool:
        draws = [
            pool.submit(follows, served, asked, truth, TEMPERATURE, 600)
            for asked, truth in ((text, known), (picture, seen))
        ]
        for drawn in draws:
            drawn.result()


@pytest.mark.slow
def test_every_control_at_once(glance: Server, text: dict, known: dict) -> None:
    controls = everything(known)
    answers, tokens_a_round = draw(glance, text, controls, num=1000)
    found = judge(answers, known, controls)
    assert found.num_cells >= 8 and found.by_chi_square and found.by_distance, found
    assert tokens_a_round > 1
    without, _ = distribution(known, Controls(top_k=controls.top_k))
    assert not fit(answers, without).by_chi_square  # the controls did change it


@pytest.mark.slow
def test_a_wrong_rule_on_the_server_is_caught(text: dict, known: dict, tmp_path: Path) -> None:
    """A server whose walk takes each node's likeliest draft without asking the target."""
    env = {"PYTHONPATH": entry_point(tmp_path, "wrong_rule:register")}
    with start(READER, tmp_path / "server.log", *glance_flags(), env=env) as server:
        answers, tokens_a_round = draw(server, text, TEMPERATURE)
    assert tokens_a_round == LENGTH - 1
    found = fit(answers, distribution(known, TEMPERATURE)[0])
    assert not found.by_chi_square and not found.by_distance, found


def test_greedy_and_sampled_requests_in_one_batch(
    glance: Server, plain: Plain, prompts: list[dict]
) -> None:
    """Every kind of sampled neighbour at once; greedy ids stay, and sampled ones are others."""
    greedy = {"max_new_tokens": 48, "ignore_eos": True}
    kinds = [{}, {"top_k": 5}, {"top_p": 0.8, "frequency_penalty": 0.5}, {"min_p": 0.1}]
    texts = [request for request in prompts if not request.get("images")][:4]  # little is certain
    sampled = [(r, greedy | {"temperature": 1.5} | kind) for r, kind in zip(texts, kinds)]
    for _ in range(2):
        answers = ask_together(glance, [(request, greedy) for request in prompts[:4]] + sampled)
        assert_identical(answers[:4], plain.answers(prompts[:4], **greedy))
        certain = plain.answers(texts, **greedy)
        assert sum(a.ids != b.ids for a, b in zip(answers[4:], certain)) >= 3


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"sampling_params": {"beam_width": 2}}, "beam search"),
        ({"watermark": {"enabled": True}}, "watermark"),
    ],
    ids=["beam_width", "watermark"],
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
