"""A run goes on whatever happens in a row, keeps every verdict at once, and ends in time."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu import check, fleet
from gpu.checks import Asked, Wrong
from gpu.fleet import Fleet
from gpu.rows import Row, Setup
from gpu.runner import Report, Runner
from sglang.glance.cli.failures import Failed
from sglang.glance.measure.provenance import describe

ONE, TWO, THREE = (Setup("bfloat16", name) for name in ("flashinfer", "triton", "fa3"))
PLAIN = ONE.reference


class Machine:
    """Stands in for servers: ``up``, those that run; ``broken``, those that will not start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Setup] = []
        self.up: set[Setup] = set()
        self.most = 0
        self.broken: set[Setup] = set()
        self.ended: set[Setup] = set()

    @contextlib.contextmanager
    def start(self, setup: Setup) -> Iterator[object]:
        log = self.folder / f"{setup.name}.log"
        log.write_text(f"first line\nthe last line of {setup.name}\n")
        self.started.append(setup)
        self.up.add(setup)
        self.most = max(self.most, len(self.up))
        process = SimpleNamespace(poll=lambda: 1 if setup in self.ended else None)
        tail = lambda lines: "\n".join(log.read_text().splitlines()[-lines:])
        yield SimpleNamespace(setup=setup, log=log, process=process, tail=tail)
        self.up.discard(setup)

    def wait(self, server: object, timeout_s: float) -> None:
        if server.setup in self.broken:
            raise Failed("a server ended while starting")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(fleet, "wait_until_up", made.wait)
    return made


def good(asked: Asked) -> dict:
    return {"number": 1}


def wrong(asked: Asked) -> dict:
    raise Wrong("it differs", {"number": 2})


@pytest.fixture
def run(machine: Machine, tmp_path: Path) -> Callable[..., dict[str, dict]]:
    """Runs the rows; what the file then holds, row by row."""

    def of(*rows: Row, minutes: float = 8, ahead: int = 0, **given: object) -> dict[str, dict]:
        report = Report(describe([]), "cpu", minutes, len(rows))
        servers = Fleet(rows, machine.start, ahead)
        given = {"left_out": lambda row: None, **given}
        Runner(rows, servers, report, tmp_path / "out.json", **given).run(lambda outcome: None)
        assert not machine.up
        return {row["row"]: row for row in written(tmp_path)["rows"]}

    return of


def written(folder: Path) -> dict:
    return json.loads((folder / "out.json").read_text())


def test_every_verdict_is_in_the_file_before_the_next_row(run: Callable, tmp_path: Path) -> None:
    def seen(asked: Asked) -> dict:
        kept = written(tmp_path)
        return {"rows": len(kept["rows"]), "finished": kept["finished"]}

    rows = run(Row("a", good, ONE), Row("b", seen, ONE), Row("c", seen, TWO))
    assert [row["numbers"] for row in rows.values()] == [
        {"number": 1},
        {"rows": 1, "finished": False},
        {"rows": 2, "finished": False},
    ]
    report = written(tmp_path)
    assert report["finished"] and report["verdicts"] == {"ok": 3}
    assert report["provenance"]["versions"]["sglang"] == "0.5.23"


@pytest.mark.parametrize(
    "error", [Wrong("no", {"number": 2}), AssertionError("no"), KeyError("no")]
)
def test_a_row_that_fails_does_not_stop_the_rest(run: Callable, error: Exception) -> None:
    def fails(asked: Asked) -> dict:
        raise error

    rows = run(Row("a", fails, ONE), Row("b", good, ONE), Row("c", good, TWO))
    failed, *rest = rows.values()
    assert failed["verdict"] == "failed" and "no" in failed["reason"]
    assert failed["numbers"] == getattr(error, "numbers", {})
    assert failed["log"][-1] == f"the last line of {ONE.name}"
    assert [row["verdict"] for row in rest] == ["ok", "ok"]


def test_a_server_that_does_not_start_is_one_failed_row(run: Callable, machine: Machine) -> None:
    machine.broken = {ONE}
    failed, second, third = run(*(Row(w, good, s) for w, s in zip("abc", (ONE, ONE, TWO)))).values()
    assert failed["verdict"] == "failed" and "ended while starting" in failed["reason"]
    assert failed["log"] == ["first line", f"the last line of {ONE.name}"]
    assert second["verdict"] == "left out" and failed["row"] in second["reason"]
    assert third["verdict"] == "ok"


def test_the_log_of_a_plain_server_that_does_not_start_is_kept(
    run: Callable, machine: Machine
) -> None:
    machine.broken = {PLAIN}
    rows = list(run(Row("a", good, ONE), Row("b", good, TWO)).values())
    assert [row["verdict"] for row in rows] == ["failed", "failed"]
    assert all(row["log"][-1] == f"the last line of {PLAIN.name}" for row in rows)
    assert machine.started.count(PLAIN) == 1


def test_a_row_that_hangs_is_given_up_with_its_server(run: Callable, machine: Machine) -> None:
    release = threading.Event()
    hangs = lambda asked: release.wait(60)
    rows = list(run(Row("a", hangs, ONE, 0.2), Row("b", good, ONE), Row("c", good, TWO)).values())
    release.set()
    assert [row["verdict"] for row in rows] == ["failed", "left out", "ok"]
    assert "not done after 0 s" in rows[0]["reason"] and rows[0]["row"] in rows[1]["reason"]


def test_a_server_that_ends_fails_one_row(run: Callable, machine: Machine) -> None:
    def ends(asked: Asked) -> dict:
        machine.ended.add(asked.ours.setup)
        raise ConnectionError("reset")

    rows = list(run(Row("a", ends, ONE), Row("b", good, ONE), Row("c", good, TWO)).values())
    assert [row["verdict"] for row in rows] == ["failed", "left out", "ok"]


def test_what_no_time_is_left_for_is_left_out(run: Callable, machine: Machine) -> None:
    now = [0.0]

    def later(seconds: float) -> Callable[[Asked], dict]:
        return lambda asked: now.__setitem__(0, now[0] + seconds) or {}

    rows = [Row("a", later(470), ONE), Row("b", later(6), ONE), Row("c", good, ONE)]
    rows = list(run(*rows, clock=lambda: now[0]).values())
    assert [row["verdict"] for row in rows] == ["ok", "ok", "left out"]
    assert "8 minutes were spent" in rows[2]["reason"]


def test_a_row_cut_by_the_end_of_the_run_has_not_failed(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [474.0]

    def wait(server: object, timeout_s: float) -> None:
        now[0] += 10
        raise Failed("a server was not up after 6 s")

    monkeypatch.setattr(fleet, "wait_until_up", wait)
    ticks = iter([0.0])
    (row,) = run(Row("a", good, ONE), clock=lambda: next(ticks, now[0])).values()
    assert row["verdict"] == "left out" and "8 minutes were spent" in row["reason"]


def test_what_this_machine_lacks_is_left_out_and_not_started(
    run: Callable, machine: Machine
) -> None:
    out = lambda row: "absent" if row.setup is TWO else None
    rows = run(Row("a", good, TWO), Row("b", lambda budget_s: {"s": budget_s}), left_out=out)
    assert [row["verdict"] for row in rows.values()] == ["left out", "ok"]
    assert rows["kernels/b"]["numbers"] == {"s": 30}


def test_servers_start_ahead_and_end_once_nobody_needs_them(
    run: Callable, machine: Machine
) -> None:
    up: list[set[Setup]] = []

    def note(asked: Asked) -> dict:
        up.append(set(machine.up))
        return {}

    run(Row("a", note, ONE), Row("b", note, TWO), Row("c", note, THREE), ahead=1)
    assert machine.started == [PLAIN, ONE, TWO, THREE]
    assert up[0] == {PLAIN, ONE, TWO}
    assert all({PLAIN, setup} <= running for running, setup in zip(up, (ONE, TWO, THREE)))
    run(Row("a", note, ONE), Row("b", note, TWO), Row("c", note, THREE))
    assert up[3] == {PLAIN, ONE}


def test_a_timed_row_waits_for_what_has_begun_and_nothing_begins_beside_it(
    run: Callable, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Setup] = []
    monkeypatch.setattr(
        fleet, "wait_until_up", lambda server, timeout_s: waited.append(server.setup)
    )

    def timed(asked: Asked) -> dict:
        assert set(waited) == machine.up == {PLAIN, ONE, TWO}
        return {}

    rows = [Row("a", timed, ONE, quiet=True), Row("b", timed, ONE, quiet=True)]
    rows = run(*rows, Row("c", good, TWO), Row("d", good, THREE), ahead=1)
    assert {row["verdict"] for row in rows.values()} == {"ok"}


def test_the_command_says_what_happened(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    planned = [Row("a", good, ONE), Row("b", wrong, ONE), Row("c", good, TWO)]
    monkeypatch.setattr(check.matrix, "rows_for", lambda device: planned)
    monkeypatch.setattr(check.matrix, "left_out", lambda row, device: None)
    monkeypatch.setattr(check, "start_in", lambda logs, device: machine.start)
    given = ["--device", "cpu", "--json", str(tmp_path / "new" / "out.json")]
    assert check.main(given) == 1
    assert "2 ok, 1 failed" in capsys.readouterr().out
    assert check.main([*given, "--rows", "/[ac]"]) == 0
    assert len(written(tmp_path / "new")["rows"]) == 2
    assert check.main([*given, "--rows", "nothing"]) == 2
    assert check.main(["--list"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-3:]] == [
        row.name for row in planned
    ]
    monkeypatch.setattr(check, "this_device", lambda: "cpu")
    assert check.main([]) == 2
