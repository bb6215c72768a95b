"""The audit against two running servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.floors import ACCEPT_LEN_AUDIT, reached
from harness import Plain, Server
from sglang.glance.check import audit
from sglang.glance.cli.run import run


def test_two_running_servers(
    glance: Server, plain: Plain, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "report.json"
    urls = ["--plain-url", plain.server.url, "--glance-url", glance.url]
    code = audit.main([*urls, "--json", str(out), "--parallel", "4"])
    report = json.loads(out.read_text())
    assert code == 0, report
    assert report["verdict"] == "identical"
    assert report["divergences"] == report["control_divergences"] == []
    assert report["requests"] == 28 and report["compared_tokens"] > 300
    assert report["model"] == "reader" and report["dtype"] == "float32"
    assert report["smallest_margin"] > 0
    assert "verdict: identical" in capsys.readouterr().out
    assert reached("tokens a round", report["accept_length"]) > ACCEPT_LEN_AUDIT


def test_servers_in_the_wrong_places(
    glance: Server, plain: Plain, capsys: pytest.CaptureFixture
) -> None:
    assert run("audit", ["--plain-url", glance.url, "--glance-url", plain.server.url]) == 2
    assert "runs --speculative-algorithm GLANCE" in capsys.readouterr().err
