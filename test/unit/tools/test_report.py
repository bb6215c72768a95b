"""Tables and kept results: what they say about hand-made rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from sglang.glance.measure.figures import Run, keeping, load
from sglang.glance.measure.plots import draw
from sglang.glance.measure.provenance import Provenance, describe
from sglang.glance.measure.report import show
from sglang.glance.measure.summary import losses, summarise, targets


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
    return Run(made, {"plain": [], "glance": ["--x"]}, {"float32": 60.0}, 0.01, shipped=True)


def test_kept_rows_come_back_as_they_were(tmp_path: Path, run: Run, two_arms: list) -> None:
    keep(tmp_path / "folder", run, two_arms)
    assert load(tmp_path / "folder") == (run, two_arms)


def keep(folder: Path, run: Run, rows: list) -> None:
    with keeping(folder, run) as add:
        for row in rows:
            add(row)


def test_a_run_cut_short_can_be_shown(tmp_path: Path, run: Run, two_arms: list) -> None:
    """By kill -9 or a full disk: the rows up to there, the last one cut."""
    keep(tmp_path / "run", run, two_arms)
    path = tmp_path / "run" / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    kept, rows = load(tmp_path / "run")
    assert rows == two_arms[:-1]
    (condition,) = summarise(kept, rows).conditions
    assert condition.left_out == 1 and {cell.asked for cell in condition.cells} == {1}


def test_a_run_is_never_written_over(tmp_path: Path, run: Run, two_arms: list) -> None:
    keep(tmp_path / "run", run, two_arms)
    with pytest.raises(FileExistsError):
        keep(tmp_path / "run", run, [])
    assert load(tmp_path / "run")[1] == two_arms


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


def shown(run: Run, rows: list) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        show(summarise(run, rows), console)
    return capture.get()


def test_show_prints_figures_and_formulas(run: Run, two_arms: list) -> None:
    said = shown(run, two_arms)
    for expected in (
        "with local changes",
        "0.67",
        "accept length = ",
        "low-high",
        "Targets",
        "Where GLANCE loses",
        "NO",
    ):
        assert expected in said


def test_targets_are_the_shipped_model_s(run: Run, two_arms: list) -> None:
    assert "Targets" not in shown(msgspec.structs.replace(run, shipped=False), two_arms)


def test_tables_of_every_arm_fit_80_columns(run: Run, make_row: Callable, laps: Callable) -> None:
    """With figures as wide as a run has shown: no cell is folded."""
    split = laps(draft=110, tree=1, verify=130, accept=1, commit=12)
    drafting = ("glance", "chain", "glance-8", "glance-16", "ngram-32", "eagle3-3")
    rows = []
    for prompt, task in enumerate(("infographic", "scene_text", "document") * 12):
        for repeat in range(3):
            each = {"prompt": prompt, "repeat": repeat, "task": task, "group": prompt}
            rows.append(make_row("plain", total_s=9.5 + 0.1 * prompt, **each))
            made = {"rounds": 2, "laps_ms": split, "logged": 2, **each}
            rows += [make_row(arm, total_s=1.1 + 0.01 * prompt, **made) for arm in drafting]
    lines = [line.rstrip() for line in shown(run, rows).splitlines()]
    assert max(map(len, lines)) <= 80
    words = [line.split() for line in lines[: lines.index("Targets")]]
    for arm in drafting:  # a line in each of the four blocks of the table of speeds
        assert sum(line[:1] == [arm] and len(line) == 10 for line in words) == 4
    assert sum(line[:1] == ["verify"] for line in words) == 2  # five arms, and the sixth


def test_the_summary_has_the_tables_numbers(run: Run, two_arms: list) -> None:
    out = msgspec.json.decode(msgspec.json.encode(summarise(run, two_arms)))
    cells = {(c["task"], c["arm"]): c for c in out["conditions"][0]["cells"]}
    assert cells["document", "glance"]["decode_x_plain"]["value"] == pytest.approx(4)
    assert cells["all", "glance"]["accept_length"] == 1.5
    assert cells["all", "plain"]["decode_x_plain"] is None
    assert out["conditions"][0]["split_ms"]["glance"]["verify"] == 15
    assert out["run"]["provenance"]["commit"] == "abc" and len(out["losses"]) == 2


def test_plots_are_drawn_beside_the_rows(run: Run, two_arms: list, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = draw(summarise(run, two_arms), tmp_path)
    assert [path.name for path in paths] == ["speedup-float32-batch1.png", "round.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_provenance_names_versions_and_digests_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = describe([tmp_path])
    (tmp_path / "a").write_text("2")
    second = describe([tmp_path])
    assert first.data != second.data
    assert first.versions["sglang"] == second.versions["sglang"] != "absent"
