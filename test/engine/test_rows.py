"""Rows of one's own in every command: each kind of picture file, several pictures, turns, text."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.rows import write_rows
from harness import READER, Plain, Server
from sglang.glance import train
from sglang.glance.check import audit
from sglang.glance.measure import bench
from sglang.glance.measure.bench import Arm
from sglang.glance.measure.figures import load
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import Prompt, load_prompts
from sglang.glance.serving.client import Endpoint
from sglang.glance.train import run
from sglang.glance.train.data import Row

LONGEST = 12  # tokens of an answer
TINY = ("--layers", "1", "--block", "4", "--anchors", "2", "--held-out", "2", "--epochs", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def rows(data: Path) -> list[Prompt]:
    return load_prompts(data)


def test_both_endpoints_are_asked_the_same(plain: Plain, rows: list[Prompt]) -> None:
    """Our rendering and the server's: prompts of as many tokens, the same greedy answers."""
    prompter = Prompter(READER)
    for row in rows:
        answer = plain.server.generate(prompter.request(row), max_new_tokens=LONGEST)
        assert answer.meta["prompt_tokens"] == prompter.count(row)
        assert Endpoint(plain.server.url).ask(row, LONGEST).ids == answer.ids


def test_audit(
    glance: Server, plain: Plain, data: Path, rows: list[Prompt], tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    urls = ["--plain-url", plain.server.url, "--glance-url", glance.url]
    asked = ["--requests", str(data), "--max-tokens", str(LONGEST), "--parallel", "4"]
    assert audit.main([*urls, *asked, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["verdict"] == "identical" and report["requests"] == len(rows)


def test_bench(
    glance: Server,
    plain: Plain,
    round_log: Path,
    data: Path,
    rows: list[Prompt],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole command, around servers that run already."""

    @contextlib.contextmanager
    def running(*given: object) -> Iterator[list[Arm]]:
        none = tmp_path / "none"
        yield [
            Arm("plain", plain.server, none),
            Arm("glance", glance, round_log, round_log.stat().st_size),
        ]

    monkeypatch.setattr(bench, "running", running)
    given = ["--requests", str(data.parent), "--arms", "glance", "--repeats", "1"]
    given += ["--dtype", "float32", "--max-new-tokens", str(LONGEST), "--out", str(tmp_path)]
    assert bench.main(given) == 0
    measured, answered = load(tmp_path)
    assert len(measured.provenance.data) == 64
    assert len(answered) == 2 * len(rows)
    assert [row.task for row in answered] == [row.group for row in rows for _ in range(2)]
    arms = {arm: {r.prompt: r.ids for r in answered if r.arm == arm} for arm in ("plain", "glance")}
    assert arms["plain"] == arms["glance"]
    assert all(row.logged == row.rounds for row in answered)


def test_train(
    plain: Plain, data: Path, rows: list[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, around a server that runs already; and again from its rows alone."""

    @contextlib.contextmanager
    def starting(*given: object, **how: object) -> Iterator[Server]:
        yield plain.server

    monkeypatch.setattr(run, "starting", starting)
    out = tmp_path / "out"
    given = ["--model-path", str(READER), "--max-new-tokens", str(LONGEST), *TINY]
    assert train.main([*given, "--data", str(data), "--out", str(out)]) == 0
    made = load_prompts(out / "rows.jsonl", kind=Row)
    assert [len(row.pictures) for row in made] == [len(row.pictures) for row in rows]
    again = tmp_path / "again"
    monkeypatch.delattr(run, "starting")
    given = [*given, "--rows", str(out / "rows.jsonl"), "--out", str(again)]
    assert train.main(given) == 0
    weights = [path / "head" / "model.safetensors" for path in (out, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        ("audit", "--max-tokens"),
        ("bench", "--arms", "glance", "--repeats", "1", "--dtype", "float32", "--max-new-tokens"),
        ("law", "--max-tokens"),
        ("train", "--model-path", str(READER), *TINY, "--max-new-tokens"),
    ],
    ids=lambda given: given[0],
)
def test_the_commands_as_they_are_typed(data: Path, tmp_path: Path, given: tuple[str, ...]) -> None:
    name, *options = given
    rows = "--data" if name == "train" else "--requests"
    out = ["--out", str(tmp_path / "out")] if name == "train" else []
    line = [sys.executable, "-m", "sglang.glance", name, *options, "48", rows, str(data), *out]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
