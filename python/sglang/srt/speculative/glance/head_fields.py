"""What each field of a head's ``config.json`` does: used, harmless, or refused by its name.

Used are the fields that GLANCE reads and those that SGLang builds its draft model from. A field
that neither reads is harmless, for the reason stated here, or bound to the values that leave the
head as it is. Every other field is refused: it may change what the head computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple, NoReturn

from sglang.srt.speculative.glance.refusal import Refusal


class HeadConfigError(Refusal):
    """A head checkpoint's ``config.json`` that GLANCE cannot serve; the message names the field."""


def fail(field: str, got: Any, expected: str, mend: str) -> NoReturn:
    raise HeadConfigError(f"head config field {field}: got {got!r}, expected {expected}; {mend}")


# In `dflash_config` or at the top level, where SGLang reads them too. `mask_token` is a name for
# `mask_token_id`, which is required.
SHARED = {"target_layer_ids", "mask_token_id", "mask_token", "block_size", "num_target_layers"}
# What GLANCE's trainer adds to the format.
GLANCE = {"target_fingerprint"}
USED = {
    *("architectures", "model_type", "dflash_config", "glance_config"),
    *("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "attention_bias", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings"),
    *("layer_types", "sliding_window", "use_sliding_window", "is_causal"),
    *("draft_vocab_size", "dtype", "torch_dtype", "quantization_config"),
}
# Fields that neither reads, by the reason why they change nothing.
HARMLESS = {
    "training reads it, serving does not": ("attention_dropout", "initializer_range"),
    "embedding and LM head are the target's": ("tie_word_embeddings",),
    "the target says which token ends an answer": (
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
    ),
    "read beside `use_sliding_window` alone, which must be false": ("max_window_layers",),
    "says where the file comes from": (
        *("transformers_version", "_name_or_path", "name_or_path", "_commit_hash"),
        *("_attn_implementation_autoset", "auto_map"),
    ),
    "read by transformers' own models and their `generate`": (
        *("use_cache", "output_attentions", "output_hidden_states", "return_dict"),
        *("chunk_size_feed_forward", "is_encoder_decoder", "problem_type", "torchscript"),
        *("id2label", "label2id", "num_labels", "pretraining_tp"),
    ),
}
_OFF = (False, 0, "")
# Bound to values that leave the head as it is; null and absence always do. A field of these may
# stand in `dflash_config` or at the top level.
BOUND = {
    "hidden_act": ("silu",),
    "input_embedding_scale": (1,),
    "output_multiplier": (1,),
    "attention_value_scale": (1,),
    "partial_rotary_factor": (1,),
    "rope_is_neox_style": (True,),
    "is_neox_style": (True,),
    "attention_mode": ("gqa",),
    # attention: other exports say so here
    "causal": (False,),
    "use_swa": (False,),
    "swa_window_size": _OFF,
    # variants of the format, and parts that other heads have
    "projector_type": _OFF,
    "conv_kernel_size": _OFF,
    "conv_group_size": _OFF,
    "selector_rank": _OFF,
    "selector_top_k": _OFF,
    "shift_label": _OFF,
    "final_logit_softcapping": _OFF,
    "attention_sink_bias": _OFF,
    "use_gemma_norm": _OFF,
    "mlp_bias": _OFF,
    "has_embed_tokens": _OFF,
    "has_lm_head": _OFF,
}
_KNOWN = SHARED | USED | set(BOUND) | {name for names in HARMLESS.values() for name in names}


def check_names(head: Mapping[str, Any], dflash: Mapping[str, Any]) -> None:
    """Refuse by name what is unknown, changes the head, or contradicts its other copy."""
    known = {"": _KNOWN, "dflash_config.": SHARED | set(BOUND)}
    for prefix, fields in (("", head), ("dflash_config.", dflash)):
        for name, got in fields.items():
            if name in BOUND and got is not None and not _among(got, BOUND[name]):
                fail(
                    f"{prefix}{name}",
                    got,
                    f"{BOUND[name][0]!r}, or absent",
                    "GLANCE serves plain DFlash heads, and this one computes something else",
                )
        _refuse_unknown(prefix, fields, known[prefix])
    for name in SHARED & head.keys() & dflash.keys():
        if head[name] != dflash[name]:
            fail(
                f"dflash_config.{name}",
                dflash[name],
                f"{head[name]!r}, as at the top level",
                "keep the one that the head was trained with",
            )


def check_glance_names(extra: Mapping[str, Any]) -> None:
    _refuse_unknown("glance_config.", extra, GLANCE)


def _refuse_unknown(prefix: str, fields: Mapping[str, Any], known: set[str]) -> None:
    for name in sorted(fields.keys() - known):
        fail(
            f"{prefix}{name}",
            fields[name],
            "no field of this name",
            "GLANCE does not know what it changes: remove it if the head computes the same "
            "without it",
        )


def _among(got: Any, values: tuple[Any, ...]) -> bool:
    """Like ``in``, but ``True`` is no 1."""
    return any(got == v and isinstance(got, bool) == isinstance(v, bool) for v in values)


class HeadLayer(NamedTuple):
    """``window``: tokens that a token sees, itself included, None for all; ``causal``: whether the
    tokens of a block see those before them alone."""

    window: int | None
    causal: bool


def head_layers(head: Mapping[str, Any]) -> list[HeadLayer]:
    """What SGLang's draft model makes of each layer: without ``is_causal`` a sliding layer is
    causal and a full one is not."""
    kinds = head.get("layer_types") or ["full_attention"] * head["num_hidden_layers"]
    slides = [kind == "sliding_attention" for kind in kinds]
    causal = head.get("is_causal")
    return [
        HeadLayer(head.get("sliding_window") if s else None, s if causal is None else causal)
        for s in slides
    ]


def describe(layers: list[HeadLayer]) -> str:
    """``5 layers, full attention, not causal``; a part for each run of equal layers."""
    parts = []
    for layer, run in groupby(layers):
        count = len(list(run))
        sees = "full attention" if layer.window is None else f"window of {layer.window} tokens"
        plural = "" if count == 1 else "s"
        parts.append(f"{count} layer{plural}, {sees}, {'' if layer.causal else 'not '}causal")
    return "; ".join(parts)


def check_layers(head: Mapping[str, Any]) -> None:
    """Refuse layers that are not full attention over the whole block, and fields that contradict
    each other about it."""
    kinds, number = head.get("layer_types"), head["num_hidden_layers"]
    allowed = ("full_attention", "sliding_attention")
    listed = isinstance(kinds, list) and len(kinds) == number
    if kinds is not None and not (listed and all(kind in allowed for kind in kinds)):
        fail("layer_types", kinds, f"{number} of {allowed}", "copy it from the trained head")
    slides, window = "sliding_attention" in (kinds or ()), head.get("sliding_window")
    switch, causal = head.get("use_sliding_window"), head.get("is_causal")
    for name, got in (("use_sliding_window", switch), ("is_causal", causal)):
        if got is not None and not isinstance(got, bool):
            fail(name, got, "true or false", "copy it from the trained head")
    mend = "the two contradict each other: keep what the head was trained with"
    if not slides and window is not None and switch is not False:
        fail("sliding_window", window, "null beside layer_types without a window", mend)
    if switch and not slides:
        fail("use_sliding_window", switch, "false beside layer_types without a window", mend)
    if slides and (window is None or switch is False):
        fail("layer_types", kinds, "full attention, since sliding_window is off", mend)
    layers = head_layers(head)
    if set(layers) != {HeadLayer(None, False)}:
        fail(
            "layer_types" if slides else "is_causal",
            kinds if slides else causal,
            f"full attention, not causal, in every layer (here: {describe(layers)})",
            "heads with other layers are not supported",
        )
