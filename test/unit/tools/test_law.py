"""The fit finds what was planted, says what it cannot fit, and rounds are told apart by request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sglang.glance.cli.run import run
from sglang.glance.law import main
from sglang.glance.law.command import laws_of
from sglang.glance.law.fit import CannotFit, fit_law, parameters
from sglang.glance.law.rows import Asked, LawRow, Line, join, load_rows, save_rows
from sglang.srt.speculative.glance.core import law

LONGEST = 15
PLANTED = [(0.96, 0.63), (1.6, 1.71), (0.5, 0.46), (2.5, 3.0), (-0.5, 0.4), (1.0, -0.3)]


def entropies(n: int, seed: int) -> np.ndarray:
    """As a captioning model's are: many near 0, some above 2 nats."""
    return np.random.default_rng(seed).exponential(0.5, n)


def columns(*values: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(each, dtype=torch.float64) for each in values]


def runs(h: np.ndarray, b0: float, b1: float, seed: int) -> np.ndarray:
    """Accepted drafts drawn as the truncated form says: agree with probability p, up to L times."""
    p = 1 / (1 + np.exp(b1 * h - b0))
    return np.minimum(np.random.default_rng(seed).geometric(1 - p) - 1, LONGEST)


def make_rows(h: np.ndarray, a: np.ndarray, task: str = "caption", **given: int) -> list[LawRow]:
    shape = {"budget": 32, "max_drafts": LONGEST, **given}
    return [LawRow(task, "r", float(x), int(y), **shape) for x, y in zip(h, a, strict=True)]


@pytest.mark.parametrize(("b0", "b1"), PLANTED)
@pytest.mark.parametrize("form", law.FORMS)
def test_planted_parameters_without_noise(form: str, b0: float, b1: float) -> None:
    h = torch.tensor(entropies(400, 0))
    a = law.FORMS[form](law.log_odds(h, b0, b1), LONGEST)
    assert parameters(form, h, a, LONGEST) == pytest.approx((b0, b1), abs=1e-3)


@pytest.mark.parametrize(("b0", "b1"), PLANTED)
@pytest.mark.parametrize("form", law.FORMS)
def test_planted_parameters_with_noise_of_any_mean(form: str, b0: float, b1: float) -> None:
    """Both forms are means: noise around them is averaged out."""
    h = torch.tensor(entropies(4000, 1))
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    a = law.FORMS[form](law.log_odds(h, b0, b1), LONGEST) + 1.5 * noise
    got = parameters(form, h, a, LONGEST)
    assert got == pytest.approx((b0, b1), abs=0.15 if b0 > 0 else 0.3)


@pytest.mark.parametrize(("b0", "b1"), PLANTED[:4])
def test_planted_parameters_of_drawn_runs(b0: float, b1: float) -> None:
    h = entropies(4000, 3)
    fitted = fit_law(make_rows(h, runs(h, b0, b1, 4)))
    fit = fitted.fits["v2"]
    assert (fit.b0, fit.b1) == pytest.approx((b0, b1), abs=0.15)
    assert fit.holds and not fit.clamped and fit.decile_r2 > 0.9
    assert 0 < fit.round_r2 <= fitted.ceiling + 0.01
    assert fitted.rank_correlation < 0 and fitted.rank_p < 1e-9
    assert sum(decile.rounds for decile in fitted.deciles) == fitted.rounds == 4000
    means = [decile.drafts for decile in fitted.deciles]
    assert len(means) == 10 and means[0] > means[-1]


def test_runs_that_the_entropy_does_not_explain() -> None:
    h = entropies(2000, 5)
    fit = fit_law(make_rows(h, runs(h, 0.5, -0.4, 6))).fits["v2"]
    assert fit.b1 < 0 and not fit.holds
    assert not fit.conditions["slope"] and not fit.conditions["rank"]
    unrelated = fit_law(make_rows(h, runs(np.full(2000, 0.3), 0.5, 0.6, 7)))
    assert not unrelated.fits["v1"].holds and abs(unrelated.fits["v1"].b1) < 0.15


def test_too_few_drafts_are_no_law() -> None:
    h = entropies(3000, 8)
    fit = fit_law(make_rows(h, runs(h, -2.0, 1.0, 9))).fits["v2"]
    assert not fit.conditions["range"] and fit.conditions["slope"]


@pytest.mark.parametrize("form", law.FORMS)
def test_a_cliff_ends_at_the_clamp(form: str) -> None:
    h = np.linspace(0.1, 0.9, 300)
    fit = fit_law(make_rows(h, np.where(h < 0.5, LONGEST, 0))).fits[form]
    assert fit.clamped and fit.b1 == law.MAX_SLOPE
    assert not fit.conditions["range"] and fit.conditions["slope"]
    assert fit.round_r2 > 0.8  # b0 is fitted to the clamped slope


@pytest.mark.parametrize(
    ("h", "a", "problem"),
    [
        (np.linspace(0, 1, 29), np.arange(29) % 5, "29 rounds; a fit needs 30"),
        (np.linspace(0, 1, 40), np.full(40, LONGEST), "all 40 rounds accepted 15 drafts"),
        (np.linspace(0, 1, 40), np.zeros(40), "all 40 rounds accepted 0 drafts"),
        (np.full(40, 0.25), np.arange(40) % 5, "the entropy is 0.25 nats in all 40 rounds"),
    ],
)
def test_what_cannot_be_fitted_is_said(h: np.ndarray, a: np.ndarray, problem: str) -> None:
    fitted = fit_law(make_rows(h, a))
    assert problem in fitted.problem and not fitted.fits
    assert fitted.rounds == len(h) and fitted.mean_drafts == pytest.approx(a.mean())
    with pytest.raises(CannotFit, match=problem):
        parameters("v2", *columns(h, a), LONGEST)


def test_thirty_rounds_are_enough() -> None:
    h = np.linspace(0, 2, 30)
    assert fit_law(make_rows(h, runs(h, 1.0, 0.6, 10))).problem is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (LawRow("t", "r", float("nan"), 1, 32, 15), "round 41: entropy nan, expected nats"),
        (LawRow("t", "r", -0.5, 1, 32, 15), "round 41: entropy -0.5"),
        (LawRow("t", "r", 0.5, 16, 32, 15), "round 41: 16 correct drafts, expected 0 to 15"),
        (LawRow("t", "r", 0.5, 3, 16, 15), "rounds of 2 tree shapes"),
        (LawRow("t", "r", 0.5, 3, 32, 7), "rounds of 2 tree shapes"),
    ],
)
def test_rounds_that_are_none_are_refused(row: LawRow, said: str) -> None:
    h = np.linspace(0, 1, 40)
    with pytest.raises(ValueError, match=said):
        fit_law([*make_rows(h, np.arange(40) % 5), row])


def line(**per_request: tuple[float, int]) -> Line:
    entropy, accept_lens = zip(*per_request.values(), strict=True)
    return Line(list(accept_lens), 32, 15, list(per_request), list(entropy))


def test_rounds_go_to_their_requests() -> None:
    """``a``: 1 + 3 + 2 tokens and a round too many. ``b``: the end cuts its last run of 5 to 2.
    ``c`` was asked by nobody here."""
    log = [
        line(a=(0.1, 3), c=(9.0, 9)),
        line(b=(0.3, 1), a=(0.2, 2)),
        line(a=(8.0, 7), b=(0.4, 5)),
        line(b=(7.0, 6)),
    ]
    asked = {"a": Asked("chart", 6, 2), "b": Asked("caption", 4, 2)}
    assert [(r.task, r.entropy, r.num_correct_drafts) for r in join(log, asked)] == [
        ("chart", 0.1, 2),
        ("caption", 0.3, 0),
        ("chart", 0.2, 1),
        ("caption", 0.4, 2),
    ]


def test_a_log_that_lacks_rounds_is_refused() -> None:
    with pytest.raises(RuntimeError, match="request a: the server counts 3 rounds, .* holds 1"):
        join([line(a=(0.1, 3))], {"a": Asked("chart", 9, 3)})


def test_laws_of_each_task_and_of_all() -> None:
    h = entropies(300, 11)
    one, two = (make_rows(h, runs(h, b, 0.6, 12), t) for b, t in ((1.5, "chart"), (0.2, "scene")))
    laws = laws_of([*one, *two[:20]])
    assert list(laws) == ["chart", "scene", "all"]
    assert laws["chart"] == fit_law(one)
    assert "20 rounds" in laws["scene"].problem and laws["all"].rounds == 320
    with pytest.raises(ValueError, match="a task is named 'all'"):
        laws_of(make_rows(h, runs(h, 1.0, 0.6, 13), "all"))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    h = entropies(600, 14)
    tasks = [make_rows(h, runs(h, b, 0.8, 15), t) for b, t in ((1.2, "chart"), (0.4, "caption"))]
    path = tmp_path / "rows.jsonl"
    save_rows(path, [*tasks[0], *tasks[1], *make_rows(h[:5], np.arange(5), "scene")])
    return path


def test_command_on_recorded_rounds(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "law.json", tmp_path / "law.png"
    assert main(["--rows", str(recorded), "--json", str(out), "--plot", str(picture)]) == 0
    report = json.loads(out.read_text())
    assert list(report["laws"]) == ["chart", "caption", "scene", "all"]
    assert report["laws"]["chart"]["fits"]["v2"]["b1"] == pytest.approx(0.8, abs=0.3)
    assert report["source"] == "rows.jsonl" and len(report["source_sha256"]) == 64
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "E[a|H] = min(p/(1-p), L)" in said
    assert "holds" in said and "scene: 5 rounds; a fit needs 30" in said


def test_rows_are_read_as_they_were_kept(recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    save_rows(again, load_rows(recorded))
    assert again.read_bytes() == recorded.read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rounds"),
        ('{"task": "chart"}', "rows.jsonl:1: Object missing required field `request`"),
        ("not json", "rows.jsonl:1: JSON is malformed"),
    ],
)
def test_files_that_hold_no_rounds(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    assert run("law", ["--rows", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_nothing_fitted_is_told_by_the_exit_code(tmp_path: Path) -> None:
    save_rows(tmp_path / "rows.jsonl", make_rows(np.linspace(0, 1, 9), np.arange(9)))
    assert main(["--rows", str(tmp_path / "rows.jsonl")]) == 1


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    def run(*flags: str) -> str:
        with pytest.raises(SystemExit):
            main(list(flags))
        return capsys.readouterr().err

    return run


def test_wrong_flags_are_refused_before_work_starts(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--rows are kept already" in refused("--rows", "a", "--save", "b")
    assert "--parallel must be at least 1" in refused("--parallel", "0")
    assert "expected a name that ends in .png" in refused("--plot", "law.txt")
    monkeypatch.setattr("sglang.glance.law.cli.find_spec", lambda name: None)
    assert "--plot needs the package matplotlib" in refused("--plot", "law.png")
