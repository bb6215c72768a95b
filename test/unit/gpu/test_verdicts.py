"""When a check fails: told by answers, without a server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu import alone, checks
from gpu.checks import Asked, Wrong
from harness import Answer

IDS = [5, 6, 7, 8, 9, 10, 11, 12]


def answer(ids: list[int], rounds: int = 1, gap: float | None = None) -> Answer:
    """``gap``: plain decoding's best token ahead of token 1, at each position."""
    meta = {"spec_verify_ct": rounds, "finish_reason": {"type": "length"}}
    meta |= {"completion_tokens": len(ids), "prompt_tokens": 3}
    if gap is not None:
        rows = [[[-0.5, token, None], [-0.5 - gap, 1, None]] for token in ids]
        meta["output_top_logprobs"] = rows
    return Answer(ids, str(ids), meta)


class Fake:
    """A server with one answer to everything, whose log grows by ``said`` each time it is asked."""

    def __init__(self, log: Path, given: Answer, said: str = "") -> None:
        self.log, self.given, self.said = log, given, said
        log.write_text("before\n")

    def generate_all(self, requests: list[dict], parallel: int, **sampling: object) -> list[Answer]:
        with self.log.open("a") as log:
            log.write(self.said)
        return [self.given] * len(requests)

    def generate(self, request: dict, **sampling: object) -> Answer:
        return self.given


def asked(folder: Path, ours: Answer, plain: Answer, dtype: str, said: str = "") -> Asked:
    plains = SimpleNamespace(
        answers=lambda requests, **sampling: [plain for _ in requests],
        answers_to=lambda asks: [plain for _ in asks],
    )
    pictures = [{"text": "Read it.", "task": "document"}]
    return Asked(Fake(folder / "log", ours, said), plains, None, dtype, "cuda", True, pictures)


@pytest.mark.parametrize(
    ("dtype", "ids", "gap", "verdict"),
    [
        ("float32", IDS, 0.0, "ok"),
        ("float32", [5, 6, 1, *IDS[3:]], 0.00001, "depart"),
        ("bfloat16", IDS, 3.0, "ok"),
        ("bfloat16", [5, 6, 1, *IDS[3:]], 0.5, "ok"),
        ("bfloat16", [5, 6, 1, *IDS[3:]], 0.6, "depart"),
        ("bfloat16", [5, 6, 2, *IDS[3:]], 0.1, "depart"),  # not among plain decoding's best
        ("bfloat16", IDS[:-1], 0.1, "depart"),
    ],
)
def test_a_divergence_fails_unless_bfloat16_explains_it(
    tmp_path: Path, dtype: str, ids: list[int], gap: float, verdict: str
) -> None:
    ask = asked(tmp_path, answer(ids), answer(IDS, gap=gap), dtype)
    if verdict == "ok":
        numbers = checks.judged(ask, [({}, {})], [answer(ids)])
        assert len(numbers["divergences"]) == (ids != IDS)
    else:
        with pytest.raises(Wrong, match="1 of 1 answers depart") as caught:
            checks.judged(ask, [({}, {})], [answer(ids)])
        (found,) = caught.value.numbers["divergences"]
        assert found["near_tie"] is False and "margin" in found


def test_a_server_that_drafts_nothing_fails(tmp_path: Path) -> None:
    ask = asked(tmp_path, answer(IDS, rounds=0), answer(IDS), "float32")
    with pytest.raises(Wrong, match="decoded plainly"):
        checks.judged(ask, [({}, {})], [answer(IDS, rounds=0)])


def test_a_head_that_drafts_badly_fails(tmp_path: Path) -> None:
    fives = answer(IDS[:6])
    ask = asked(tmp_path, fives, fives, "float32")
    with pytest.raises(Wrong, match="5.0 tokens a round"):
        checks.greedy(ask)
    assert checks.greedy(ask._replace(tree=False))["tokens_a_round_read"] == 5


def step(size: int, graph: bool) -> str:
    return f"Decode batch, #running-req: {size}, #token: 99, cuda graph: {graph}, gen: 1\n"


@pytest.mark.parametrize(
    ("check", "said", "right"),
    [
        (checks.in_graphs, step(4, True) + step(1, True), True),
        (checks.in_graphs, step(4, True) + step(1, False), False),
        (checks.in_graphs, "", False),
        (checks.above_the_largest_graph, step(8, False) + step(3, True), True),
        (checks.above_the_largest_graph, step(8, True), False),
        (checks.above_the_largest_graph, step(4, False), False),
        (checks.without_graphs, step(8, False), True),
        (checks.without_graphs, step(8, False) + step(2, True), False),
        (checks.without_graphs, "", False),
    ],
)
def test_rounds_run_as_the_row_says(tmp_path: Path, check, said: str, right: bool) -> None:
    ask = asked(tmp_path, answer(IDS), answer(IDS), "float32", said)
    if right:
        assert set(check(ask)) >= {"graph_batches", "eager_batches", "tokens_a_round"}
    else:
        with pytest.raises(Wrong):
            check(ask)


def seeded(folder: Path, shift: int, seeds: int = 3) -> dict:
    """The check on a server whose tokens are its seed's, and ``shift`` off plain decoding's."""

    def told(request: dict, sampling: dict, shift: int = 0) -> Answer:
        return answer([len(request["text"]), sampling["sampling_seed"] % seeds + shift])

    plains = SimpleNamespace(answers_to=lambda asks: [told(*ask) for ask in asks])
    server = SimpleNamespace(generate=lambda request, **sampling: told(request, sampling, shift))
    pictures = [{"text": "Read it."}]
    return checks.seeded(Asked(server, plains, None, "float32", "cuda", False, pictures))


def test_seeded_answers_are_plain_decodings_and_differ_by_seed(tmp_path: Path) -> None:
    assert seeded(tmp_path, 0)["distinct"] > 5
    with pytest.raises(AssertionError, match="departs at token 1"):
        seeded(tmp_path, 1)
    with pytest.raises(Wrong, match="nothing was sampled"):
        seeded(tmp_path, 0, seeds=1)


@pytest.mark.parametrize(("stdout", "code"), [('{"a": {"masked": 9}}\n', 1), ("", 1), ("", -11)])
def test_a_kernel_check_that_ends_badly_fails(
    stdout: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, stdout, "what it said")
    monkeypatch.setattr(alone, "ran", lambda command, budget_s: done)
    with pytest.raises(Wrong):
        alone.flashinfer_attention(1)
    with pytest.raises(Wrong):
        alone.twins(1)


def test_kernel_checks_return_what_they_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(command: list[str], budget_s: float) -> subprocess.CompletedProcess:
        out = '{"a": 1}\n' if command[0].endswith("attention.py") else "3 passed, 1 skipped in 2s\n"
        assert (alone.ROOT / command[-1]).exists()
        return subprocess.CompletedProcess([], 0, out, "")

    monkeypatch.setattr(alone, "ran", ran)
    assert alone.flashinfer_attention(1) == {"a": 1}
    assert alone.twins(1) == {"passed": 3, "skipped": 1}
