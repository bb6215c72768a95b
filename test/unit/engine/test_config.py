"""What a head's ``config.json`` and the flags may say, and the field or flag each refusal names."""

import copy
import json

import pytest
import torch
from builders.heads import config_for
from builders.shipped import MASK
from sglang.glance.shipped import HEAD as HEAD_FOLDER
from sglang.glance.shipped import READER
from sglang.srt.layers.rotary_embedding.factory import get_rope
from sglang.srt.speculative.glance.config import DEFAULT_BUDGET, DEFAULT_TOPK, GlanceConfig, resolve
from sglang.srt.speculative.glance.head_config import describe_layers, layer_attention, parse_head
from sglang.srt.speculative.glance.refusal import HeadConfigError
from sglang.srt.utils.hf_transformers_utils import get_rope_config
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

TARGET = {"num_hidden_layers": 36, "hidden_size": 2560, "vocab_size": 151936}
# The layout of public DFlash heads: two keys in `dflash_config`, the rest at the top level.
HEAD = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "num_target_layers": 36,
    "num_hidden_layers": 5,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "layer_types": ["full_attention"] * 5,
}
ABSENT = object()


def head(**changes):
    """HEAD with top-level fields changed, or dropped where the value is ABSENT."""
    out = {**copy.deepcopy(HEAD), **changes}
    return {name: value for name, value in out.items() if value is not ABSENT}


def dflash(**changes):
    fields = {**HEAD["dflash_config"], **changes}
    return head(dflash_config={k: v for k, v in fields.items() if v is not ABSENT})


def written_by_transformers() -> dict:
    """Every field that transformers puts into a Qwen3's config, as a hub gives it."""
    return Qwen3Config(**head()).to_dict()


def parsed() -> GlanceConfig:
    return parse_head(HEAD, TARGET)


def test_public_layout_parses():
    assert parsed() == GlanceConfig(
        block=16,
        budget=DEFAULT_BUDGET,
        topk=DEFAULT_TOPK,
        taps=(1, 9, 17, 25, 33),
        mask_token_id=151669,
    )


@pytest.mark.parametrize(
    "layout",
    [
        head(tie_word_embeddings=False),
        head(tie_word_embeddings=ABSENT),
        head(num_attention_heads=16, num_key_value_heads=16),  # no grouping
        head(num_attention_heads=28, num_key_value_heads=4),
        head(num_attention_heads=32, num_key_value_heads=1),  # one shared K/V head
        head(vocab_size=ABSENT),
        head(num_target_layers=ABSENT),
        head(layer_types=ABSENT),
        head(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        head(rope_scaling=ABSENT, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        head(block_size=ABSENT, dflash_config={**HEAD["dflash_config"], "block_size": 16}),
        dflash(mask_token="<|mask|>", num_target_layers=36),
        dflash(output_multiplier=1.0, shift_label=False, conv_kernel_size=None),
        head(is_causal=False, input_embedding_scale=1.0, draft_vocab_size=151936),
        head(is_causal=None, draft_vocab_size=None, quantization_config=None),
        head(sliding_window=4096, use_sliding_window=False),
        head(sliding_window=4096, use_sliding_window=False, layer_types=ABSENT),
        head(sliding_window=4096, use_sliding_window=True, layer_types=ABSENT),  # from layer 28 on
        head(rope_scaling={"type": "linear", "factor": 4.0}),
        head(attention_dropout=0.1, transformers_version="5.2.0", torch_dtype="bfloat16"),
        dflash(num_target_layers=36, block_size=16, selector_rank=0, projector_type=None),
        head(model_type="qwen3_vl_text"),
        head(rope_scaling={"rope_type": "default", "rope_theta": 1000000.0}),
        head(rope_parameters={"rope_type": "default", "partial_rotary_factor": 1.0}),
        head(sliding_window=None, rms_norm_eps=1e-5, attention_bias=True),
        head(mask_token_id=151669, block_size=16, target_layer_ids=[1, 9, 17, 25, 33]),
        head(output_multiplier=1, attention_sink_bias=False, partial_rotary_factor=1.0),
        dflash(causal=False, use_swa=False, swa_window_size=None, attention_mode="gqa"),
        written_by_transformers(),
        head(glance_config={}),
        head(glance_config={"target_fingerprint": "0a1b"}),
        head(glance_config={"target_fingerprint": None}),
    ],
    ids=lambda layout: "",
)
def test_other_layouts_mean_the_same(layout):
    assert parse_head(layout, TARGET) == parsed()


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        (head(dflash_config=ABSENT), "dflash_config"),
        (head(dflash_config=[1, 2]), "dflash_config"),
        (head(block_size=ABSENT), "block_size"),
        (head(block_size=1), "block_size"),
        (head(block_size="16"), "block_size"),
        (head(block_size=True), "block_size"),
        (dflash(mask_token_id=ABSENT), "mask_token_id"),
        (dflash(mask_token_id=ABSENT, mask_token="<|mask|>"), "mask_token_id"),
        (dflash(mask_token_id=-1), "mask_token_id"),
        (dflash(mask_token_id=151936), "mask_token_id"),
        (dflash(target_layer_ids=ABSENT), "target_layer_ids"),
        (dflash(target_layer_ids=[]), "target_layer_ids"),
        (dflash(target_layer_ids=[1, 1, 3]), "target_layer_ids"),
        (dflash(target_layer_ids=[3, 1]), "target_layer_ids"),
        (dflash(target_layer_ids=[-1, 3]), "target_layer_ids"),
        (dflash(target_layer_ids=[1, 35]), "target_layer_ids"),  # the last layer is never captured
        (dflash(target_layer_ids=[1, 36]), "target_layer_ids"),
        (dflash(target_layer_ids=[1, 2.0]), "target_layer_ids"),
        (dflash(target_layer_ids="1,2"), "target_layer_ids"),
        (head(num_target_layers=28), "num_target_layers"),
        (head(hidden_size=2048), "hidden_size"),
        (head(hidden_size=ABSENT), "hidden_size"),
        (head(vocab_size=32000), "vocab_size"),
        (head(num_hidden_layers=0), "num_hidden_layers"),
        (head(num_attention_heads=ABSENT), "num_attention_heads"),
        (head(num_key_value_heads=None), "num_key_value_heads"),
        (head(num_key_value_heads=7), "num_key_value_heads"),
        (head(rope_scaling={"mrope_section": [24, 20, 20]}), "rope_scaling"),
        (head(rope_parameters={"mrope_section": [24, 20, 20]}), "rope_parameters"),
        (head(layer_types=["sliding_attention"] * 5), "sliding_window"),
        (head(layer_types=["sliding_attention"] * 5, sliding_window=512), "layer_types"),
        (head(layer_types=["chunked_attention"] * 5), "layer_types"),
        (head(sliding_window=512), "sliding_window"),
        (head(sliding_window=512, use_sliding_window=True), "sliding_window"),
        (
            head(
                layer_types=ABSENT, sliding_window=512, use_sliding_window=True, max_window_layers=2
            ),
            "use_sliding_window",
        ),
        (head(is_causal=True), "is_causal"),
        (head(input_embedding_scale=50.6), "input_embedding_scale"),
        (dflash(input_embedding_scale=50.6), "dflash_config.input_embedding_scale"),
        (head(draft_vocab_size=32000), "draft_vocab_size"),
        (dflash(num_target_layers=28), "num_target_layers"),
        (dflash(block_size=8), "block_size"),
        (head(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rope_scaling"),
        (head(rope_scaling={"type": "longrope"}), "rope_scaling"),
        (
            head(rope_parameters={"full_attention": {"rope_type": "default"}}),
            "rope_parameters",
        ),
        (head(rope_scaling={"rope_type": ["yarn"]}), "rope_scaling"),
        (head(rope_scaling={"rope_type": "yarn"}), "rope_scaling.factor"),
        (head(rope_scaling={"rope_type": "yarn", "type": "linear", "factor": 2}), "rope_scaling"),
        (
            head(rope_scaling={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2}),
            "rope_scaling.attention_factor",
        ),
        (head(rope_scaling={"rope_type": "default", "factor": 4.0}), "rope_scaling.factor"),
        (head(rope_scaling="yarn"), "rope_scaling"),
        (
            head(rope_scaling={"type": "linear", "factor": 2}, rope_parameters={"type": "default"}),
            "rope_scaling",
        ),
        (head(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), "rope_theta"),
        (
            head(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
            "rope_parameters.partial_rotary_factor",
        ),
        (head(rope_theta=ABSENT), "rope_theta"),
        (head(rope_theta="1e6"), "rope_theta"),
        (head(layer_types="full_attention"), "layer_types"),
        (head(layer_types=[["full_attention"]] * 5), "layer_types"),
        (head(use_sliding_window=True), "use_sliding_window"),
        (head(is_causal=0), "is_causal"),
        (dflash(causal=True), "dflash_config.causal"),
        (dflash(use_swa=True, swa_window_size=512), "dflash_config.swa_window_size"),
        (head(input_embedding_scale=True), "input_embedding_scale"),
        (head(input_embedding_scale=0), "input_embedding_scale"),
        (head(rms_norm_eps=0), "rms_norm_eps"),
        (head(attention_bias="no"), "attention_bias"),
        (head(head_dim=ABSENT), "head_dim"),
        (head(max_position_embeddings=ABSENT), "max_position_embeddings"),
        (head(architectures=["DFlash2DraftModel"]), "architectures"),
        (head(architectures=ABSENT), "architectures"),
        (head(model_type="gemma3_text"), "model_type"),
        (head(text_config={"hidden_size": 2560}), "text_config"),
        (head(mask_token_id=5), "mask_token_id"),
        (dflash(markov_rank=256), "markov_rank"),
        (head(use_gemma_norm=True), "use_gemma_norm"),
        (head(partial_rotary_factor=0.5), "partial_rotary_factor"),
        (head(is_neox_style=False), "is_neox_style"),
        (head(hidden_act="gelu"), "hidden_act"),
        (head(quantization_config={"quant_method": "fp8"}), "quantization_config"),
        (head(mlp_bias=True), "mlp_bias"),
        (head(num_experts=8), "num_experts"),
        (head(layer_types=["full_attention"] * 4), "layer_types"),
        (dflash(taps=[1, 2]), "taps"),
        (dflash(projector_type="mlp"), "projector_type"),
        (dflash(output_multiplier=0.5), "output_multiplier"),
        (dflash(attention_sink_bias=True), "attention_sink_bias"),
        (dflash(shift_label=1), "shift_label"),
        (head(conv_kernel_size=3), "conv_kernel_size"),
        (head(glance_config={"temperature": 1}), "glance_config"),
        (head(glance_config=[1]), "glance_config"),
        (head(glance_config={"target_fingerprint": 7}), "target_fingerprint"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_field_is_named(layout, field):
    with pytest.raises(HeadConfigError) as refusal:
        parse_head(layout, TARGET)
    line = str(refusal.value)
    assert field in line and "\n" not in line


def test_flags_override_and_defaults_stay():
    assert resolve(parsed(), block=None, budget=None, topk=None) == parsed()
    config = resolve(parsed(), block=8, budget=20, topk=4)
    assert (config.block, config.budget, config.topk) == (8, 20, 4)


@pytest.mark.parametrize("budget", [2, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_budget_below_at_and_above_the_block(budget):
    config = resolve(parsed(), block=None, budget=budget, topk=None)
    assert config.budget == budget
    assert config.window == max(16, budget)
    assert config.max_depth == min(16, budget) - 1


def test_chain_is_as_long_as_the_block():
    config = resolve(parsed(), block=None, budget=None, topk=1)
    assert (config.budget, config.max_depth) == (16, 15)
    assert resolve(parsed(), block=None, budget=9, topk=1).max_depth == 8


def test_default_budget_fits_a_small_block():
    assert resolve(parsed(), block=2, budget=None, topk=8).budget == 9


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"budget": 0}, "--speculative-num-draft-tokens"),
        ({"budget": 1}, "--speculative-num-draft-tokens"),
        ({"budget": -3}, "--speculative-num-draft-tokens"),
        ({"budget": 17, "topk": 1}, "--speculative-num-draft-tokens"),
        ({"budget": 10, "block": 2}, "--speculative-num-draft-tokens"),
        ({"topk": 0}, "--speculative-eagle-topk"),
        ({"topk": -1}, "--speculative-eagle-topk"),
        ({"topk": 100_000}, "--speculative-eagle-topk"),
        ({"budget": 70_000}, "--speculative-num-draft-tokens"),
        ({"block": 1}, "--speculative-dflash-block-size"),
        ({"block": 17}, "--speculative-dflash-block-size"),
    ],
)
def test_impossible_flag_is_named(flags, name):
    with pytest.raises(ValueError) as refusal:
        resolve(parsed(), **{"block": None, "budget": None, "topk": None, **flags})
    assert name in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_log_says_what_the_layers_attend_to():
    assert (
        describe_layers(layer_attention(HEAD))
        == "5 layers, full attention, not causal in the block"
    )
    mixed = head(layer_types=["sliding_attention", *["full_attention"] * 4], sliding_window=512)
    layers = layer_attention(mixed)
    assert [(layer.window, layer.causal) for layer in layers] == [(512, True)] + [(None, False)] * 4
    assert describe_layers(layers).startswith(
        "layer 0: a window of 512, causal in the block; layer 1: full attention, not causal"
    )
    plain = layer_attention({**mixed, "is_causal": False})
    assert [layer.causal for layer in plain] == [False] * 5


def test_shipped_and_hand_made_heads_parse():
    text = json.loads((READER / "config.json").read_text())["text_config"]
    for config in (json.loads((HEAD_FOLDER / "config.json").read_text()), config_for(READER, MASK)):
        assert parse_head(config, text).taps == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        {
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 128},
        },
    ],
    ids=lambda rope: "-".join(map(str, rope.values())),
)
def test_a_scaled_rotation_is_the_same_in_sglang_and_where_heads_are_trained(rope):
    """SGLang's table, built as its draft model builds it, against transformers'."""
    config = Qwen3Config(**head(rope_scaling=rope, max_position_embeddings=256))
    parse_head(head(rope_scaling=rope), TARGET)
    theta, scaling = get_rope_config(config)
    table = get_rope(
        128, rotary_dim=128, max_position=256, base=theta, rope_scaling=scaling, dtype=torch.float32
    ).cos_sin_cache[:256]
    angles = Qwen3RotaryEmbedding(config)(torch.zeros(1), torch.arange(256)[None])
    cos, sin = (half[0, :, :64] for half in angles)
    torch.testing.assert_close(table, torch.cat([cos, sin], dim=-1), rtol=1e-5, atol=2e-5)
