"""Starts through SGLang's own ServerArgs: the dtype, the K/V pool and the two checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.heads import config_for, random_head
from builders.qwen25vl import random_qwen25vl
from builders.shipped import MASK
from builders.starts import resolve_all
from builders.targets import copy_in_dtype, other_weights
from sglang.glance.shipped import HEAD, READER

TARGET, DRAFT = "--model-path", "--speculative-draft-model-path"


def flags(target: object = READER, head: object = HEAD, *more: str) -> list[str]:
    return [TARGET, str(target), "--speculative-algorithm", "GLANCE", DRAFT, str(head), *more]


def _broken_folders(tmp: Path) -> Iterator[tuple[str, list[str], str]]:
    """Name, flags and what the refusal says, for every checkpoint that is none."""
    empty, text, garbled, listed = (tmp / n for n in ("empty", "text.txt", "garbled", "listed"))
    for folder in (empty, garbled, listed):
        folder.mkdir()
    text.write_text("no model")
    (garbled / "config.json").write_text('{"block_size": 16,')
    (listed / "config.json").write_text("[]")
    for flag, place in ((TARGET, 0), (DRAFT, 1)):
        cases = {
            "missing": (tmp / "nowhere", "does not exist"),
            "relative and missing": ("./nowhere", "does not exist"),
            "file": (text, "is a file"),
            "empty folder": (empty, "no config.json in"),
            "broken JSON": (garbled, "cannot be read as JSON"),
            "not an object": (listed, "holds a list"),
            "name that no hub gives": ("someone/something", "nor a model that a hub gives"),
        }
        for name, (path, said) in cases.items():
            pair = [READER, HEAD]
            pair[place] = path
            yield f"{flag} {name}", flags(*pair), f"{flag}: .*{said}"
    model = shutil.copytree(READER, tmp / "model")
    yield "full model as head", flags(READER, model), f"{DRAFT}: .* holds a full model"
    yield "head as target", flags(HEAD, HEAD), f"{TARGET}: .* is a draft head"
    yield "swapped", flags(HEAD, READER), "swapped.*exchange the two paths"
    other = tmp / "text-model"
    shutil.copytree(READER, other)
    config = json.loads((other / "config.json").read_text())
    config["architectures"] = ["Qwen3VLMoeForConditionalGeneration"]
    (other / "config.json").write_text(json.dumps(config))
    yield "another target", flags(other), rf"{TARGET}=\['Qwen3VLMoe"
    yield "no head", flags()[:-2], f"needs {DRAFT}: give the path of a head"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str], str]]:
    return list(_broken_folders(tmp_path_factory.mktemp("broken")))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, broken) -> dict[str, dict]:
    """Every start of this file, resolved in one process whose shell has no switch set."""
    tmp = tmp_path_factory.mktemp("targets")
    half = copy_in_dtype(READER, tmp / "float16", "float16")
    brain = copy_in_dtype(READER, tmp / "bfloat16", "bfloat16")
    qwen = random_qwen25vl(READER, tmp / "qwen", dtype="float16")
    head32 = copy_in_dtype(HEAD, tmp / "head32", "float32")
    cases = {
        "float32": flags(),
        "float16": flags(half),
        "bfloat16": flags(brain),
        "bfloat16, head in float32": flags(brain, head32),
        "float16 Qwen2.5-VL": flags(qwen, random_head(config_for(qwen, MASK), tmp / "qwen-head")),
        "given bfloat16": flags(READER, HEAD, "--dtype", "bfloat16"),
        "given float32": flags(half, HEAD, "--dtype", "float32"),
        "given float16": flags(READER, HEAD, "--dtype", "float16"),
        "given half": flags(brain, HEAD, "--dtype", "half"),
        "pool given": flags(READER, HEAD, "--max-total-tokens", "5000"),
        "fraction given": flags(READER, HEAD, "--mem-fraction-static", "0.5"),
        "small pool": flags(
            *(READER, HEAD, "--context-length", "512", "--max-running-requests", "4")
        ),
        "its own target": flags(),
        "another one": flags(other_weights(READER, tmp / "other")),
    }
    return resolve_all({**cases, **{name: asked for name, asked, _ in broken}})


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("float32", "float32"),
        ("float16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("bfloat16, head in float32", "bfloat16"),
        ("float16 Qwen2.5-VL", "bfloat16"),
        ("given bfloat16", "bfloat16"),
        ("given float32", "float32"),
    ],
)
def test_target_and_head_reach_the_same_dtype_that_a_cpu_serves(outcomes, case, dtype):
    got = outcomes[case]
    assert got["ended"] == "resolved", got
    assert got["device"] == "cpu" and got["switch"] == "1"
    assert got["dtype"] == dtype
    assert got["target_dtype"] == got["draft_dtype"] == f"torch.{dtype}"
    said = [line for line in got["log"] if "--dtype" in line]
    assert len(said) == (not case.startswith("given")), got["log"]


@pytest.mark.parametrize("dtype", ["float16", "half"])
def test_float16_is_refused_by_its_flag(outcomes, dtype):
    got = outcomes[f"given {dtype}"]
    assert got["ended"] == "Refusal" and f"--dtype='{dtype}'" in got["line"]
    assert "bfloat16 or float32" in got["line"] and "\n" not in got["line"]


def test_the_pool_holds_every_running_request_within_a_share_of_memory(outcomes):
    assert outcomes["small pool"]["max_total_tokens"] == 4 * (512 + 32)
    [line] = [line for line in outcomes["small pool"]["log"] if "--max-total-tokens" in line]
    assert re.search(r"using 2176, 0\.0 GiB of K/V \(4 requests of 512 tokens", line)
    assert outcomes["pool given"]["max_total_tokens"] == 5000
    assert outcomes["fraction given"]["max_total_tokens"] is None


def test_a_head_of_another_target_is_told_in_one_line(outcomes):
    warned = {
        name: [line for line in outcomes[name]["log"] if "another target" in line]
        for name in ("its own target", "bfloat16", "another one")
    }
    assert not warned["its own target"] and not warned["bfloat16"]
    [line] = warned["another one"]
    assert str(HEAD) in line and "other" in line and "exact" in line and "\n" not in line


def test_what_is_no_checkpoint_is_refused_in_one_line(outcomes, broken):
    wrong = []
    for name, _, said in broken:
        got = outcomes[name]
        right = got["ended"] == "Refusal" and re.search(said, got["line"])
        if not right or "\n" in got["line"]:
            wrong.append((name, got))
    assert not wrong
