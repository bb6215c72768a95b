"""The demo without servers: its last line, its exit code, and what it asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sglang.glance.check import demo
from sglang.glance.cli.run import run
from sglang.glance.serving.server import Answer

KEYS = {
    "identical": bool,
    "accept_length": float,
    "speedup": float,
    "plain_tok_s": float,
    "glance_tok_s": float,
    "tokens": int,
    "requests": int,
    "machine": str,
    "dtype": str,
}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, make_row: Callable) -> dict:
    """Replaces both servers; the returned dict sets GLANCE's ids."""
    said = {"ids": [1, 2, 3, 4, 5], "asked": []}

    def ask(arm, flags, options, questions, console):
        said["asked"].append((arm, tuple(flags), options.dtype))
        ids = said["ids"] if arm == "glance" else [1, 2, 3, 4, 5]
        rounds, total_s = (2, 0.6) if arm == "glance" else (0, 0.9)
        rows = [make_row(arm, dtype=options.dtype, ids=ids, rounds=rounds, total_s=total_s)]
        return [Answer(ids, "text", {})], rows

    monkeypatch.setattr(demo, "ask", ask)
    return said


def last_line(capsys: pytest.CaptureFixture) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_last_line_is_one_json_object(answering: dict, capsys: pytest.CaptureFixture) -> None:
    assert demo.main([]) == 0
    out = last_line(capsys)
    for key, kind in KEYS.items():
        assert type(out[key]) is kind, f"{key}: {out[key]!r}"
    assert out["identical"] and out["dtype"] == "float32"
    assert out["accept_length"] == 2
    assert out["plain_tok_s"] == 10 and out["glance_tok_s"] == 40 and out["speedup"] == 4
    assert out["speedup_end_to_end"] == 1.5
    assert (out["tokens"], out["requests"], out["rounds"]) == (5, 1, 2)


def test_the_json_file_holds_the_last_line(
    answering: dict, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    demo.main(["--json", str(tmp_path / "out.json")])
    assert json.loads((tmp_path / "out.json").read_text()) == last_line(capsys)


def test_different_ids_fail_in_float32(answering: dict, capsys: pytest.CaptureFixture) -> None:
    answering["ids"] = [1, 2, 3, 4, 6]  # the text may well be the same
    assert demo.main([]) == 1
    assert last_line(capsys)["identical"] is False


def test_different_ids_are_reported_in_bfloat16(
    answering: dict, capsys: pytest.CaptureFixture
) -> None:
    answering["ids"] = [1, 2, 3, 4, 6]
    assert demo.main(["--dtype", "bfloat16"]) == 0
    assert last_line(capsys)["identical"] is False


def test_plain_is_asked_first_and_only_glance_gets_the_head(answering: dict) -> None:
    demo.main(["--head-path", "some/head"])
    (first, plain_flags, _), (second, glance_flags, _) = answering["asked"]
    assert (first, plain_flags, second) == ("plain", (), "glance")
    assert "some/head" in glance_flags


def test_an_interrupt_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "ask", interrupt)
    assert run("demo", []) == 130


def test_a_long_answer_keeps_its_end_on_one_line() -> None:
    assert demo.line("a\nb", 20) == "a | b"
    assert demo.line("0123456789", 6) == "...789"
