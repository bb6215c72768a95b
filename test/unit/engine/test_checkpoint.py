"""Weight files of a head that must not be served, and what each refusal names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders.heads import broken_head, config_for, config_of, constant_head, random_head
from builders.shipped import MASK
from safetensors.torch import load_file, save_file
from sglang.glance.shipped import HEAD, READER
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights, expected_shapes

Weights = dict[str, torch.Tensor]


@pytest.fixture
def rewritten(tmp_path: Path) -> Callable[[Callable[[Weights], object]], Path]:
    """The shipped head with its tensors changed in place."""

    def rewrite(change: Callable[[Weights], object]) -> Path:
        weights = load_file(HEAD / "model.safetensors")
        change(weights)
        out = tmp_path / "head"
        out.mkdir()
        shutil.copy(HEAD / "config.json", out)
        save_file(weights, out / "model.safetensors")
        return out

    return rewrite


def check(head: Path) -> None:
    config = config_of(head)
    check_weights(head, config, len(config["dflash_config"]["target_layer_ids"]))


def test_the_shipped_head_is_whole() -> None:
    check(HEAD)
    assert set(expected_shapes(config_of(HEAD), 5)) == set(load_file(HEAD / "model.safetensors"))


def test_heads_made_by_hand_are_whole(tmp_path: Path) -> None:
    config = config_for(READER, mask_token_id=MASK)
    check(random_head(config, tmp_path / "random"))
    check(constant_head(config, READER, tmp_path / "constant", [5, 6]))


def test_biases_that_the_config_asks_for_are_demanded(tmp_path: Path) -> None:
    config = config_for(READER, mask_token_id=MASK) | {"attention_bias": True}
    check(random_head(config, tmp_path / "biased"))
    shutil.copytree(HEAD, tmp_path / "plain")
    plain = config_of(HEAD) | {"attention_bias": True}
    (tmp_path / "plain" / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"lacks 12 of 48 tensors, 'layers\.0\.self_attn"):
        check(tmp_path / "plain")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite(rewritten: Callable, value: float) -> None:
    def spoil(weights: Weights) -> None:
        weights["layers.1.mlp.up_proj.weight"][7, 3] = value

    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight.* holds NaN"):
        check(rewritten(spoil))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fc.weight", (256, 1024)),  # of four taps
        ("layers.0.self_attn.k_proj.weight", (256, 256)),
        ("layers.2.mlp.down_proj.weight", (512, 256)),  # transposed
        ("norm.weight", (128,)),
    ],
)
def test_a_wrong_shape(rewritten: Callable, name: str, shape: tuple[int, ...]) -> None:
    def reshape(weights: Weights) -> None:
        weights[name] = torch.zeros(shape, dtype=torch.bfloat16)

    with pytest.raises(ValueError, match=rf"{name}.*expected \(.*config\.json"):
        check(rewritten(reshape))


def test_a_missing_tensor(rewritten: Callable) -> None:
    head = rewritten(lambda weights: weights.pop("layers.2.self_attn.q_norm.weight"))
    with pytest.raises(ValueError, match=r"lacks 1 of 36 tensors, 'layers\.2\.self_attn\.q_norm"):
        check(head)


def test_tensors_that_nobody_asks_for_are_left_alone(rewritten: Callable) -> None:
    def add(weights: Weights) -> None:
        weights["rotary_emb.inv_freq"] = torch.full((3,), float("nan"))

    check(rewritten(add))


def test_names_under_a_prefix(rewritten: Callable) -> None:
    def rename(weights: Weights) -> None:
        for name in list(weights):
            weights[f"model.{name}"] = weights.pop(name)

    check(rewritten(rename))


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_a_file_cut_short(tmp_path: Path, kept: int) -> None:
    head = broken_head(HEAD, tmp_path / "head")
    path = head / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read.*copy or download"):
        check(head)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    head = broken_head(HEAD, tmp_path / "head")
    (head / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        check(head)


def test_a_header_that_lies(tmp_path: Path) -> None:
    head = broken_head(HEAD, tmp_path / "head")
    header = json.dumps({"fc.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 99]}})
    data = len(header).to_bytes(8, "little") + header.encode() + bytes(8)
    (head / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        check(head)
