"""The doctor on pairs that serve and pairs that do not: a screen, and its verdict."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file
from sglang.glance.check.doctor import diagnose as module
from sglang.glance.check.doctor.diagnose import examined
from sglang.glance.check.doctor.findings import Findings
from sglang.glance.check.doctor.pair import memory, read_pair, window
from sglang.glance.cli.run import run
from sglang.glance.serving.flags import serving
from sglang.glance.shipped import EAGLE3_HEAD, HEAD, READER

PAIR = ("--model-path", str(READER), "--head-path")


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """What a process finds that tries the shipped pair on SGLang's CPU path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patch.setenv("TRITON_INTERPRET", "0")
        return examined(serving(READER, HEAD, "cpu"))


@pytest.fixture
def found(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """Stands in for the process; its element can be replaced."""
    each = [findings]
    monkeypatch.setattr(module, "this_device", lambda: "cpu")
    monkeypatch.setattr(module, "examined", lambda flags: each[0])
    return each


def test_a_process_tries_the_flags_as_a_server_would(findings: Findings) -> None:
    assert findings.refusal is None
    settled = findings.settled
    assert settled["attention_backend"] == "intel_amx" and settled["dtype"] == "float32"
    assert settled["speculative_num_draft_tokens"] == 32
    assert all(row.ok for row in findings.surface) and len(findings.surface) > 50
    assert {row.name: row.ok for row in findings.device}["GLANCE"] is True


def test_a_pair_that_serves_is_said_in_a_screen(found: list, capsys: pytest.CaptureFixture) -> None:
    assert run("doctor", [*PAIR, str(HEAD)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines[:-1])
    text = "\n".join(lines)
    for said in ("block 16, taps 0, 1, 2, 3, 4", "vocabulary", "32 slots", "GiB: weights"):
        assert said in text
    assert "GLANCE can start here" in lines[-2]
    assert f"--speculative-draft-model-path {HEAD}" in lines[-1]


def test_a_refusal_of_the_server_is_the_verdict(found: list, capsys: pytest.CaptureFixture) -> None:
    line = "GLANCE does not support --tp-size=2: expected 1"
    found[0] = msgspec.structs.replace(found[0], refusal=line, settled={})
    assert run("doctor", []) == 1
    out = capsys.readouterr().out
    assert line in out and out.endswith("GLANCE cannot start here\n")
    assert len(out.splitlines()) <= 24


def test_two_distributions_of_sgl_kernel_are_named(
    found: list, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = metadata.version
    other = {"sglang-kernel": "9.9"}
    monkeypatch.setattr(metadata, "version", lambda name: other.get(name) or installed(name))
    assert run("doctor", []) == 2
    ours = f"sglang-kernel-cpu {installed('sglang-kernel-cpu')}"
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"glance doctor: the package sgl_kernel is of {ours} and sglang-kernel 9.9, whose files "
        "overwrite each other: pip uninstall sglang-kernel-cpu sglang-kernel, then install the "
        "one for this machine"
    )


def test_verbose_and_json_have_all(found: list, capsys: pytest.CaptureFixture) -> None:
    assert run("doctor", ["--verbose"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{title}" in f"\n{out}" for title in ("installed", "surface", "adjustments"))
    assert run("doctor", ["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == [] and len(report["findings"]["surface"]) > 50


def test_what_the_heads_layers_do_is_said() -> None:
    fit = read_pair(READER, HEAD).rows[-1]
    assert fit.ok and "3 layers, full attention, not causal" in fit.detail


def test_the_head_of_another_kind_is_named() -> None:
    target, head = read_pair(READER, EAGLE3_HEAD).rows
    assert target.ok and head.ok is False
    assert head.detail == "LlamaForCausalLMEagle3: expected a head"


def test_other_sizes_are_named(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(READER, target)
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["vocab_size"] += 64
    (target / "config.json").write_text(json.dumps(config))
    fit = read_pair(target, HEAD).rows[-1]
    assert fit.ok is False and "vocab_size" in fit.detail and fit.name == "fit"


def test_a_head_of_another_target_of_the_same_sizes_is_said(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(READER, target)
    weights = load_file(target / "model.safetensors")
    save_file(
        {name: weight * 0.5 for name, weight in weights.items()}, target / "model.safetensors"
    )
    fit = read_pair(target, HEAD).rows[-1]
    assert fit.ok is None and "trained for another target" in fit.detail


@pytest.mark.parametrize("fault", ["nan", "missing", "cut short"])
def test_weights_that_cannot_be_served_are_named(tmp_path: Path, fault: str) -> None:
    head = tmp_path / "head"
    shutil.copytree(HEAD, head)
    path, weights = head / "model.safetensors", load_file(HEAD / "model.safetensors")
    name = next(iter(weights))
    if fault == "nan":
        weights[name].view(-1)[0] = float("nan")
        save_file(weights, path)
    elif fault == "missing":
        del weights[name]
        save_file(weights, path)
    else:
        path.write_bytes(path.read_bytes()[:-100])
    wrong = [row for row in read_pair(READER, head).rows if row.ok is False]
    assert len(wrong) == 1
    said = {"nan": "NaN", "missing": "lacks 1 of", "cut short": "head"}[fault]
    assert said in f"{wrong[0].name}: {wrong[0].detail}"


def test_memory_and_window_are_counted_by_hand() -> None:
    pair = read_pair(READER, HEAD)
    text = json.loads((READER / "config.json").read_text())["text_config"]
    head = json.loads((HEAD / "config.json").read_text())
    values = sum(
        2 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"] for c in (text, head)
    )
    assert pair.kv_values == values
    settled = {"device": "cpu", "dtype": "float32", "max_total_tokens": 1000}
    need = 4 * (pair.num_weights + 1000 * values)
    assert memory(pair, settled, need + 2**20).ok is True
    assert memory(pair, settled, need - 2**20).ok is False
    shape = {
        "speculative_dflash_block_size": 16,
        "speculative_num_draft_tokens": 64,
        "speculative_eagle_topk": 8,
        "context_length": None,
        "max_running_requests": 8,
    }
    assert window({**shape, "max_total_tokens": 513}).ok is True
    small = window({**shape, "max_total_tokens": 512})
    assert small.ok is False and "8 requests need 512 of 512" in small.detail
