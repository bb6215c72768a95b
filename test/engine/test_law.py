"""Entropies in the round log are those of plain decoding's distributions, and rounds are found by
the request they belong to."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from harness import PICTURES, READER, Answer, Ask, Plain, Rounds, Server, ask_together
from rich.console import Console
from sglang.glance.law import main
from sglang.glance.law.command import collect
from sglang.glance.law.rows import Asked, LawRow, Line, join
from sglang.glance.prompts.rows import load_prompts
from sglang.glance.serving.client import Endpoint

# Log-probabilities of the two differ by up to 5e-5; an entropy averages them.
TOLERANCE = 1e-4
LENGTH = {"max_new_tokens": 40, "ignore_eos": True}
# What moves or cuts a distribution after the target gave it, and still yields the same first token.
CONTROLS = {
    "greedy": {},
    "cold": {"temperature": 0.4, "top_p": 1e-6},
    "hot": {"temperature": 3.0, "top_k": 1},
    "penalties": {"frequency_penalty": 1.5, "presence_penalty": 1.0, "min_new_tokens": 20},
}


def vocab_size() -> int:
    return json.loads((READER / "config.json").read_text())["text_config"]["vocab_size"]


def with_all_logprobs(request: dict) -> dict:
    extra = {"return_logprob": True, "top_logprobs_num": vocab_size()}
    return {**request, "extra": extra}


def entropies(answer: Answer) -> list[float]:
    """At every token of an answer, from the log-probabilities of the whole vocabulary."""
    rows = [[logprob for logprob, *_ in row] for row in answer.meta["output_top_logprobs"]]
    assert all(len(row) == vocab_size() for row in rows)
    assert all(math.fsum(map(math.exp, row)) == pytest.approx(1, abs=1e-4) for row in rows)
    return [-math.fsum(math.exp(value) * value for value in row) for row in rows]


def rows_of(rounds: Rounds, answers: Sequence[Answer]) -> dict[str, list[LawRow]]:
    lines = [msgspec.convert(line, Line) for line in rounds.lines()]
    asked = {a.meta["id"]: Asked("task", len(a.ids), a.rounds) for a in answers}
    out: dict[str, list[LawRow]] = {rid: [] for rid in asked}
    for row in join(lines, asked):
        out[row.request].append(row)
    return out


def test_entropies_at_the_roots_are_plain_decoding_s(
    glance: Server, plain: Plain, rounds: Rounds, questions: list[dict]
) -> None:
    """Several requests a batch: each root's entropy is that of the token after it."""
    asked = [questions[0], questions[9], questions[14]]
    expected = [entropies(plain.answer(with_all_logprobs(request), **LENGTH)) for request in asked]
    answers = ask_together(glance, [(request, LENGTH) for request in asked])
    rows = rows_of(rounds, answers)
    seen = []
    for answer, wanted in zip(answers, expected, strict=True):
        at = 1  # the prefill's token is the first root
        for row in rows[answer.meta["id"]]:
            assert row.entropy == pytest.approx(wanted[at], abs=TOLERANCE)
            seen.append(row.entropy)
            at += row.num_correct_drafts + 1
        assert at in (len(answer.ids), len(answer.ids) + 1)  # an end may cut off the bonus
    assert len(seen) > 6 and max(seen) > 100 * TOLERANCE  # not all of them next to nothing


def test_what_is_done_to_a_distribution_is_not_in_its_entropy(
    glance: Server, plain: Plain, rounds: Rounds, questions: list[dict]
) -> None:
    """In one batch; a bias, last, that leaves one token at every node."""
    request = questions[16]  # a caption, which may go on in several ways
    answer = plain.answer(with_all_logprobs(request), **LENGTH)
    first, wanted = answer.ids[0], entropies(answer)[1]
    controls = [*CONTROLS.values(), {"logit_bias": {str(first): 60.0}}]
    asks: list[Ask] = [(request, {**LENGTH, **control}) for control in controls]
    answers = ask_together(glance, asks)
    rows = rows_of(rounds, answers)
    assert wanted > 10 * TOLERANCE
    for each in answers:
        assert each.ids[0] == first
        assert rows[each.meta["id"]][0].entropy == pytest.approx(wanted, abs=TOLERANCE)
    assert answers[-1].ids[:2] == [first, first] != answer.ids[:2]


def test_rounds_of_a_server_s_answers(glance: Server, rounds: Rounds) -> None:
    """As the command collects them, several requests at a time."""
    questions = load_prompts(PICTURES)[::3]
    options = Namespace(parallel=4, max_tokens=48)
    asked = collect(Endpoint(glance.url), questions, options, Console(quiet=True))
    rows = join([msgspec.convert(line, Line) for line in rounds.lines()], asked)
    assert len(rows) == sum(each.rounds for each in asked.values())
    assert [each.task for each in asked.values()] == [q.task for q in questions]
    for rid, each in asked.items():
        own = [row for row in rows if row.request == rid]
        # A bonus a round, but for the last where the answer ends on a draft.
        delivered = sum(row.num_correct_drafts + 1 for row in own)
        assert 0 <= delivered - (each.num_tokens - 1) <= 1
        assert {(row.task, row.budget, row.max_drafts) for row in own} == {(each.task, 32, 15)}


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    report, kept = tmp_path / "law.json", tmp_path / "rows.jsonl"
    assert main(["--json", str(report), "--save", str(kept), "--parallel", "2"]) == 0
    pooled = json.loads(report.read_text())["laws"]["all"]
    assert pooled["rounds"] == len(kept.read_text().splitlines()) >= 30
    first = capsys.readouterr().out
    assert main(["--rows", str(kept)]) == 0
    assert capsys.readouterr().out == first
