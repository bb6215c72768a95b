"""A head's ``config.json``, in DFlash's checkpoint format: every field of it is used, is known to
change nothing, or is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from sglang.srt.speculative.glance.config import DEFAULT_BUDGET, DEFAULT_TOPK, GlanceConfig
from sglang.srt.speculative.glance.head_fields import (
    DFLASH_KEYS,
    GLANCE_KEYS,
    HARMLESS,
    LAYER_VARIANTS,
    MAX_WINDOW_LAYERS,
    ROPE_TYPES,
    USED,
    VARIANTS,
)
from sglang.srt.speculative.glance.refusal import Refusal


class HeadConfigError(Refusal):
    """A head checkpoint's ``config.json`` that GLANCE cannot serve; the message names the field."""


class LayerAttention(NamedTuple):
    """What one layer of the head sees. ``window``: tokens before the block, None for all."""

    window: int | None
    causal: bool

    def __str__(self) -> str:
        reach = "full attention" if self.window is None else f"a window of {self.window}"
        return f"{reach}, {'causal' if self.causal else 'not causal'} in the block"


def _fail(field: str, got: Any, expected: str, mend: str) -> None:
    raise HeadConfigError(f"head config field {field}: got {got!r}, expected {expected}; {mend}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse_head(head: Mapping[str, Any], target: Mapping[str, Any]) -> GlanceConfig:
    """Check a DFlash-format head config against its target's text config.

    ``head``: the checkpoint's ``config.json``. ``target``: at least ``num_hidden_layers``,
    ``hidden_size`` and ``vocab_size`` of the target's text model. Budget and topk are the
    defaults; :func:`resolve` applies the flags. Raises :class:`HeadConfigError`.
    """
    dflash = head.get("dflash_config")
    if dflash is None and "draft_vocab_size" in head:
        _fail(
            "dflash_config",
            dflash,
            "an object",
            "this is an EAGLE3 head; use one in DFlash's format",
        )
    if not isinstance(dflash, Mapping):
        _fail("dflash_config", dflash, "an object", "use a head in DFlash's checkpoint format")
    _refuse_variants(head, dflash)
    _check_glance_keys(head)
    # Fields of DFlash may stand in ``dflash_config`` or beside it.
    fields = {name: _one_of_two(name, head, dflash) for name in DFLASH_KEYS}
    block = fields["block_size"]
    if not _is_int(block) or block < 2:
        _fail("block_size", block, "an integer of at least 2", "set it to the trained block")
    mask_id, vocab = fields["mask_token_id"], target["vocab_size"]
    if not _is_int(mask_id) or not 0 <= mask_id < vocab:
        _fail("dflash_config.mask_token_id", mask_id, f"an id in [0, {vocab})", "set it explicitly")
    taps = _parse_taps(fields["target_layer_ids"], target["num_hidden_layers"])
    _check_sizes(head, fields["num_target_layers"], target)
    _check_rope(head)
    for number, layer in enumerate(layer_attention(head)):
        if layer.window is not None:
            _fail(
                "layer_types" if head.get("layer_types") else "use_sliding_window",
                f"{layer} in layer {number}",
                "full attention in every layer",
                "heads with other layers are not supported",
            )
    return GlanceConfig(
        block=block, budget=DEFAULT_BUDGET, topk=DEFAULT_TOPK, taps=taps, mask_token_id=mask_id
    )


def _one_of_two(name: str, head: Mapping[str, Any], dflash: Mapping[str, Any]) -> Any:
    inner, outer = dflash.get(name), head.get(name)
    if None not in (inner, outer) and inner != outer:
        _fail(
            name,
            outer,
            f"{inner!r} as in dflash_config",
            "the two contradict each other: keep the one that the head was trained with",
        )
    return outer if inner is None else inner


def _refuse_variants(head: Mapping[str, Any], dflash: Mapping[str, Any]) -> None:
    inner = {f"dflash_config.{name}": (name, dflash) for name in VARIANTS}
    outer = {name: (name, head) for name in (*VARIANTS, *LAYER_VARIANTS)}
    for field, (name, config) in (inner | outer).items():
        neutral, got = (VARIANTS | LAYER_VARIANTS)[name], config.get(name)
        if got is None or (got == neutral and isinstance(got, bool) == isinstance(neutral, bool)):
            continue
        # False where a variant is a number or a name: the variant is off.
        if got is False and not isinstance(neutral, bool):
            continue
        _fail(
            field,
            got,
            "absent" if neutral is None else f"absent or {neutral!r}",
            "GLANCE serves plain DFlash heads; this variant is not supported",
        )
    _refuse_unknown("dflash_config", set(dflash) - set(VARIANTS), DFLASH_KEYS)
    known = USED | HARMLESS | set(VARIANTS) | set(LAYER_VARIANTS)
    if unknown := sorted(set(head) - known):
        _fail(
            unknown[0],
            head[unknown[0]],
            "a field of DFlash's format",
            "remove the field if the head does not need it; it would be ignored",
        )


def _check_glance_keys(head: Mapping[str, Any]) -> None:
    extra = head.get("glance_config") or {}
    if not isinstance(extra, Mapping):
        _fail("glance_config", extra, "an object", "copy it from the trained head")
    _refuse_unknown("glance_config", set(extra), GLANCE_KEYS)
    trained = extra.get("target_fingerprint")
    if trained is not None and not isinstance(trained, str):
        _fail(
            "glance_config.target_fingerprint",
            trained,
            "the string that the trainer wrote",
            "copy it from the trained head, or remove it",
        )


def trained_target(head: Mapping[str, Any]) -> str | None:
    """Fingerprint of the target that a head was trained for; None where its config has none."""
    return (head.get("glance_config") or {}).get("target_fingerprint")


def _refuse_unknown(field: str, got: set[str], known: set[str]) -> None:
    if unknown := got - known:
        _fail(field, sorted(unknown), f"only keys of {sorted(known)}", "remove the unknown keys")


def _parse_taps(taps: Any, num_layers: int) -> tuple[int, ...]:
    field = "dflash_config.target_layer_ids"
    # The last layer's output is never captured by the host: a head that taps it reads nothing.
    expected = f"distinct ascending layer ids in [0, {num_layers - 2}]"
    mend = "list the layers the head was trained on"
    if not isinstance(taps, (list, tuple)) or not taps or not all(map(_is_int, taps)):
        _fail(field, taps, expected, mend)
    ascending = all(a < b for a, b in pairwise(taps))
    if not ascending or taps[0] < 0 or taps[-1] > num_layers - 2:
        _fail(field, list(taps), expected, mend)
    return tuple(taps)


def _check_sizes(head: Mapping[str, Any], trained_layers: Any, target: Mapping[str, Any]) -> None:
    layers, mend = target["num_hidden_layers"], "serve the target this head was trained for"
    if trained_layers is not None and trained_layers != layers:
        _fail("num_target_layers", trained_layers, f"{layers} as in the target", mend)
    for name in ("hidden_size", "vocab_size"):
        got = head.get(name)
        if got != target[name] and not (name == "vocab_size" and got is None):
            _fail(name, got, f"{target[name]} as in the target", mend)
    if head.get("draft_vocab_size") not in (None, target["vocab_size"]):
        _fail(
            "draft_vocab_size",
            head["draft_vocab_size"],
            f"absent or the target's vocab_size, {target['vocab_size']}",
            "heads with a vocabulary of their own are not supported",
        )
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        if not _is_int(head.get(name)) or head[name] < 1:
            _fail(name, head.get(name), "a positive integer", "copy it from the trained head")
    heads, kv_heads = head["num_attention_heads"], head["num_key_value_heads"]
    if heads % kv_heads:
        _fail(
            "num_key_value_heads",
            kv_heads,
            f"a divisor of num_attention_heads ({heads})",
            "copy it from the trained head",
        )


def _check_rope(head: Mapping[str, Any]) -> None:
    for name in ("rope_scaling", "rope_parameters"):
        rope = head.get(name) or {}
        if "mrope_section" in rope:
            _fail(
                name,
                rope,
                "no mrope_section",
                "the head runs on plain 1-D positions; drop the target's M-RoPE block",
            )
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ROPE_TYPES or any(isinstance(value, Mapping) for value in rope.values()):
            _fail(
                name,
                rope,
                f"a rope_type of {ROPE_TYPES}, one for all layers",
                "heads with other rotary embeddings are not supported",
            )


def layer_attention(head: Mapping[str, Any]) -> list[LayerAttention]:
    """What each layer of a head attends to, read as transformers and SGLang read its config.

    Without ``layer_types``, ``use_sliding_window`` gives the layers from ``max_window_layers`` on
    a window. Raises :class:`HeadConfigError` where fields contradict each other.
    """
    count, kinds = head["num_hidden_layers"], head.get("layer_types")
    window, slides = head.get("sliding_window"), head.get("use_sliding_window")
    if kinds is None:
        first = head.get("max_window_layers", MAX_WINDOW_LAYERS)
        sliding = [bool(slides) and window is not None and n >= first for n in range(count)]
    else:
        sliding = [kind == "sliding_attention" for kind in kinds]
        if len(kinds) != count or not set(kinds) <= {"full_attention", "sliding_attention"}:
            _fail(
                "layer_types",
                kinds,
                f"{count} times 'full_attention' or 'sliding_attention'",
                "copy it from the trained head",
            )
        if window is None and any(sliding):
            _fail(
                "sliding_window",
                window,
                "a number of tokens, since layer_types has 'sliding_attention'",
                "copy both from the trained head",
            )
        if window is not None and slides is not False and not any(sliding):
            _fail(
                "sliding_window",
                window,
                "null, since layer_types has no 'sliding_attention'",
                "the two contradict each other: keep the one that the head was trained with",
            )
    return [LayerAttention(window if slide else None, bool(slide)) for slide in sliding]


def describe_layers(head: Mapping[str, Any]) -> str:
    """A line for the log: what the head's layers attend to, once where all do the same."""
    layers = layer_attention(head)
    if len(set(layers)) == 1:
        return f"{len(layers)} layers, {layers[0]}"
    return "; ".join(f"layer {number}: {layer}" for number, layer in enumerate(layers))
