"""What `make test-gpu` asks of a server, asked once of this machine's: a slip in the checks would
otherwise show on a card alone."""

from __future__ import annotations

import pytest
from builders.features import Expected
from gpu import checks
from gpu.checks import Asked
from harness import Plain, Server


@pytest.fixture(scope="module")
def asked(glance: Server, plain: Plain, questions: list[dict]) -> Asked:
    """Few pictures: documents, and the last of the captions."""
    pictures = [*questions[:3], questions[-1]]
    return Asked(glance, plain, Expected(plain.server), "float32", "cpu", True, pictures)


def test_greedy(asked: Asked) -> None:
    numbers = checks.greedy(asked)
    assert numbers["divergences"] == [] and numbers["tokens_a_round_read"] >= 6
    assert numbers["requests"] == len(asked.requests) > len(asked.pictures)


def test_batches_without_graphs(asked: Asked) -> None:
    """The default server logs each step here."""
    numbers = checks.without_graphs(asked)
    assert max(numbers["eager_batches"]) > checks.LARGEST_GRAPH and not numbers["graph_batches"]


def test_looping_up_to_a_limit(asked: Asked) -> None:
    numbers = checks.end_of_the_context(asked)
    assert numbers["tokens"] > 2 * 100 and numbers["divergences"] == []


@pytest.mark.parametrize("group", checks.FEATURE_GROUPS)
def test_features(asked: Asked, questions: list[dict], group: str) -> None:
    names = checks.FEATURE_GROUPS[group][-1:]
    verdicts = checks.features(asked._replace(pictures=questions), names)
    assert verdicts == {name: checks.PLAINLY.get(name, "exact") for name in names}


def test_logprobs(asked: Asked) -> None:
    assert checks.logprobs(asked)["largest_difference"] <= checks.LOGPROB_TOLERANCE["cpu"]


def test_speed(asked: Asked) -> None:
    numbers = checks.speed(asked, batch=2, repeats=1)
    assert numbers["identical"] == numbers["answers"] == len(asked.pictures)
    assert numbers["decode_only"]["ratio"] > 0 and numbers["end_to_end"]["plain_tok_s"] > 0


def test_slots(asked: Asked) -> None:
    assert checks.slots(asked) == {}
