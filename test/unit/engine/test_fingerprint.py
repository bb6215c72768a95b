"""A target's fingerprint: the same for its copies, another for every other target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.heads import config_of
from builders.targets import copy_in_dtype, other_weights
from safetensors.torch import load_file, save_file
from sglang.glance.shipped import HEAD, READER
from sglang.srt.speculative.glance.fingerprint import fingerprint
from sglang.srt.speculative.glance.head_config import trained_target

WEIGHTS = {
    "embed": torch.arange(32 * 300).view(32, 300) / 7,
    "norm": torch.linspace(-1, 1, 300),
    "conv": torch.ones(8, 3, 2, 2),
    "scale": torch.tensor(0.5),
    "ids": torch.arange(5),
    "none": torch.empty(0, 4),
}


def write(folder: Path, *files: dict, config: object = None) -> Path:
    folder.mkdir()
    for number, weights in enumerate(files):
        save_file(weights, folder / f"part-{number}.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> str:
    return fingerprint(write(tmp_path / "whole", WEIGHTS))


def test_names_files_and_a_second_copy_of_a_tied_head_do_not_matter(tmp_path, whole):
    first = {f"model.{name}": WEIGHTS[name] for name in ("embed", "scale")}
    rest = {name: w for name, w in WEIGHTS.items() if name not in ("embed", "scale")}
    tied = {**rest, "lm_head": WEIGHTS["embed"]}
    assert fingerprint(write(tmp_path / "parts", first, tied)) == whole


def test_a_file_that_the_index_leaves_out_is_not_read(tmp_path, whole):
    folder = write(tmp_path / "indexed", WEIGHTS, {"other": torch.ones(2)})
    index = {"weight_map": dict.fromkeys(WEIGHTS, "part-0.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fingerprint(folder) == whole


@pytest.mark.parametrize("name", ["embed", "norm", "conv", "scale", "ids"])
def test_another_value_or_shape_is_another_target(tmp_path, whole, name):
    changed = {**WEIGHTS, name: WEIGHTS[name] + 1}
    wider = {**WEIGHTS, name: torch.cat([WEIGHTS[name].reshape(-1)] * 2)}
    assert whole not in map(
        fingerprint, (write(tmp_path / "values", changed), write(tmp_path / "shape", wider))
    )


def test_what_cannot_be_compared_has_none(tmp_path):
    assert fingerprint(write(tmp_path / "empty")) is None
    assert fingerprint(tmp_path / "absent") is None
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    assert fingerprint(write(tmp_path / "quantised", WEIGHTS, config=quantised)) is None
    cut = write(tmp_path / "cut", WEIGHTS)
    (cut / "part-0.safetensors").write_bytes(b"short")
    assert fingerprint(cut) is None


def test_the_shipped_head_names_the_shipped_reader(tmp_path):
    trained = trained_target(config_of(HEAD))
    assert trained == fingerprint(READER)
    assert trained == fingerprint(copy_in_dtype(READER, tmp_path / "bfloat16", "bfloat16"))
    assert trained != fingerprint(other_weights(READER, tmp_path / "other"))


def test_a_corner_of_a_large_tensor_is_read(tmp_path):
    """Not what lies beyond: the cost is a few KB a tensor."""
    weights = load_file(READER / "model.safetensors")
    name = max(weights, key=lambda key: weights[key].numel())
    weights[name][-1, -1] += 1
    folder = write(tmp_path / "reader", weights, config=config_of(READER))
    assert fingerprint(folder) == fingerprint(READER)
