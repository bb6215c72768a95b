"""The program of `make test-gpu` where there is no GPU: its plan, its verdicts, its file."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu import __main__ as program
from gpu import rows as plan
from gpu.__main__ import FAILED, LEFT_OUT, OK, Report, parser, run
from gpu.checks import Verdict, asks, judge, margin
from sglang.glance.cli.failures import Failed
from sglang.glance.serving.server import Answer


def answer(ids: list[int], margins: float = 2.0, rounds: int = 1) -> Answer:
    top = [[[-0.1, token, None], [-0.1 - margins, 0, None]] for token in ids]
    logprobs = [[-0.1, token, None] for token in ids]
    meta = {"output_top_logprobs": top, "output_token_logprobs": logprobs}
    return Answer(ids, "", meta | {"spec_verify_ct": rounds})


def test_the_matrix_is_whole() -> None:
    arms = [arm for arm in plan.on_a_gpu() if arm.reference]
    backends, pages, graphs, shapes = (
        ("flashinfer", "triton", "fa3"),
        (1, 16),
        (True, False),
        (1, 8),
    )
    found = {
        (
            next(b for b in backends if b in arm.flags),
            int(arm.flags[arm.flags.index("--page-size") + 1]),
            "--disable-cuda-graph" not in arm.flags,
            1 if arm.chain else 8,
        )
        for arm in arms
    }
    assert found == set(itertools.product(backends, pages, graphs, shapes))
    assert any("--disable-overlap-schedule" in arm.flags for arm in arms)
    rows = [row for arm in plan.on_a_gpu() for row in arm.rows]
    assert len(rows) == len(set(rows))
    for check in (*plan.EVERYTHING, "seeded"):
        assert sum(row.endswith(f"/{check}") for row in rows) >= 2


def test_every_arm_is_compared_with_a_plain_one_that_answers_the_same_checks() -> None:
    for arms in (plan.on_a_gpu(), plan.on_a_cpu()):
        plain = {arm.name: arm for arm in arms if arm.reference is None}
        for arm in arms:
            if arm.reference is not None:
                missing = set(arm.checks) - set(plain[arm.reference].checks)
                assert not missing, (arm.name, missing)
                assert arm.exact == ("float32" in arm.flags)


@pytest.mark.parametrize("check", [*plan.EVERYTHING, "seeded"])
def test_every_check_can_be_judged(check: str) -> None:
    """Its requests ask for what a divergence is judged by."""
    for request, sampling in asks(check):
        assert request["extra"]["top_logprobs_num"] == 2 and isinstance(sampling, dict)


def test_a_difference_fails_in_float32_and_away_from_a_tie() -> None:
    plain, other = [answer([5, 6, 7])], [answer([5, 9, 7])]
    assert judge("crowd", True, False, plain, plain).good
    assert not judge("crowd", True, False, plain, other).good
    assert not judge("crowd", False, False, plain, other).good
    tied = [answer([5, 6, 7], margins=0.1)]
    found = judge("crowd", False, False, tied, other)
    assert found.good and found.figures["divergences"] == 1
    assert found.figures["margins"] == [pytest.approx(0.1)]
    assert not judge("crowd", True, False, tied, other).good


def test_an_answer_of_another_length_is_a_difference() -> None:
    plain, longer = [answer([5, 6], margins=0.0)], [answer([5, 6, 7])]
    assert margin(plain[0], 2) == float("inf")
    assert not judge("crowd", False, False, plain, longer).good


def test_a_server_that_drafts_nothing_fails() -> None:
    assert not judge("crowd", True, False, [answer([5])], [answer([5], rounds=0)]).good


def test_log_probabilities_are_compared() -> None:
    plain, other = answer([5, 6]), answer([5, 6])
    other.meta["output_token_logprobs"][1][0] -= 0.01
    assert judge("logprobs", False, False, [plain], [other]).good
    assert not judge("logprobs", True, False, [plain], [other]).good


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "out.json", None, re.compile(""), time.monotonic() + 60)


def kept(report: Report) -> dict:
    return json.loads(report.path.read_bytes())


def test_a_row_that_fails_is_written_and_the_next_is_tried(report: Report) -> None:
    def broken() -> Verdict:
        raise RuntimeError("device-side assert")

    report.check("a", broken)
    assert kept(report)["rows"][0]["reason"] == "RuntimeError: device-side assert"
    report.check("b", lambda: Verdict(True, "", {"error": 0.5}))
    report.check("c", lambda: Verdict(False, "differs", {}))
    report.until = 0.0
    report.check("d", broken)
    rows = kept(report)["rows"]
    assert [row["verdict"] for row in rows] == [FAILED, OK, FAILED, LEFT_OUT]
    assert kept(report)["counts"] == {OK: 1, FAILED: 2, LEFT_OUT: 1}
    assert rows[1]["figures"] == {"error": 0.5}


def test_a_server_that_does_not_start_costs_its_rows_only(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def ends(*arguments: object, **options: object) -> Iterator[None]:
        raise Failed("a server ended while starting: out of memory")
        yield

    monkeypatch.setattr(program, "serve", ends)
    report.wanted = re.compile("crowd")
    arms = [plan.Arm("plain", (), ("crowd",)), plan.Arm("tree", (), ("crowd",), "plain")]
    run(arms, "cpu", report, tmp_path, lanes=2)
    rows = {row["row"]: row for row in kept(report)["rows"]}
    assert set(rows) == {"plain/start", "tree/start"}
    assert all(row["verdict"] == FAILED and "memory" in row["reason"] for row in rows.values())


def test_rows_can_be_chosen(report: Report) -> None:
    report.wanted = re.compile("flash")
    report.check("triton/alone", lambda: pytest.fail("not asked for"))
    report.check("flashinfer/alone", lambda: Verdict(True, "", {}))
    assert [row["row"] for row in kept(report)["rows"]] == ["flashinfer/alone"]
    assert parser().parse_args(["--rows", "fa3.*tree"]).minutes == 8.0
