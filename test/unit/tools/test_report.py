"""Tables and kept results: what they say about hand-made rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from sglang.glance.figures import Run, load, save
from sglang.glance.machine import Provenance, describe
from sglang.glance.report import losses, show, targets


@pytest.fixture
def run() -> Run:
    made = Provenance(
        command=["bench"],
        started="2026-01-01T00:00:00+00:00",
        commit="abc",
        dirty=True,
        machine="a processor",
        cores=2,
        memory_gib=8.0,
        features=["avx2"],
        threads="1",
        kernels="C++",
        load=0.1,
        python="3.11.0",
        versions={"sglang": "0.5.23"},
        data="0",
    )
    return Run(made, {"plain": [], "glance": ["--x"]}, {"float32": 60.0}, 0.01)


def test_kept_rows_come_back_as_they_were(tmp_path: Path, run: Run, two_arms: list) -> None:
    save(tmp_path / "new" / "folder", run, two_arms)
    assert load(tmp_path / "new" / "folder") == (run, two_arms)


def test_targets_are_met_or_missed_by_the_figures(two_arms: list) -> None:
    got = {target.what.split(": ")[1]: target for target in targets(two_arms)}
    steps = got["plain steps a round costs"]
    assert steps.got == pytest.approx(100 / 100) and steps.met
    tree = got["tree building, % of a round"]
    assert tree.got == pytest.approx(0.5) and tree.met
    decode = got["documents, decode only, x plain"]
    assert decode.got == pytest.approx(4) and decode.met
    whole = got["documents, end to end, x plain"]
    assert whole.got == pytest.approx(1.5) and not whole.met


def test_losses_name_the_prompt_the_arm_and_both_rates(two_arms: list) -> None:
    assert [(loss.prompt, loss.other, loss.metric) for loss in losses(two_arms)] == [
        (1, "plain", "decode"),
        (1, "plain", "end to end"),
    ]
    worst = losses(two_arms)[0]
    assert worst.ours == pytest.approx(2 / 0.3) and worst.theirs == pytest.approx(2 / 0.2)


def test_losses_to_other_arms_count_too(two_arms: list, make_row: Callable) -> None:
    rows = [*two_arms, make_row("ngram", rounds=3, total_s=0.55)]
    assert ("ngram", 0) in {(loss.other, loss.prompt) for loss in losses(rows)}


def test_end_to_end_is_not_compared_per_prompt_in_a_batch(
    two_arms: list, make_row: Callable
) -> None:
    rows = [make_row("plain", batch=4), make_row("glance", batch=4, rounds=1, total_s=1.9)]
    assert {loss.metric for loss in losses(rows)} == {"decode"}


def test_show_prints_figures_and_formulas(run: Run, two_arms: list) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        show(run, two_arms, console)
    said = capture.get()
    for expected in (
        "with local changes",
        "0.67",
        "accept length = ",
        "[low, high]",
        "Where GLANCE loses",
        "NO",
    ):
        assert expected in said


def test_provenance_names_versions_and_digests_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = describe([tmp_path])
    (tmp_path / "a").write_text("2")
    second = describe([tmp_path])
    assert first.data != second.data
    assert first.versions["sglang"] == second.versions["sglang"] != "absent"
