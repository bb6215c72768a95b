"""One frozen description of a GLANCE run, from the head's ``config.json`` and SGLang's flags."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
from sglang.srt.speculative.glance.core.tree import check_shape, max_nodes
from sglang.srt.speculative.glance.refusal import Refusal

DEFAULT_BUDGET = 32
DEFAULT_TOPK = 8

_DFLASH_KEYS = {
    "target_layer_ids",
    "mask_token",
    "mask_token_id",
    "block_size",
    "num_target_layers",
}
# What GLANCE's trainer adds to the format.
_GLANCE_KEYS = {"target_fingerprint"}
# Variants of the DFlash format that change what the head computes: this release does not run them.
_UNSUPPORTED_DFLASH = (
    "projector_type",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "output_multiplier",
    "final_logit_softcapping",
    "attention_sink_bias",
    "attention_value_scale",
    "shift_label",
)


class HeadConfigError(Refusal):
    """A head checkpoint's ``config.json`` that GLANCE cannot serve; the message names the field."""


class GlanceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one round does. ``block``: drafted positions, root included. ``budget``: tree nodes
    verified a round, root included. ``topk``: candidates kept per offset (1 = chain). ``taps``:
    target layers (output of layer k) the head reads. ``max_depth``: deepest node (root = 0)."""

    block: int
    budget: int
    topk: int
    taps: tuple[int, ...]
    mask_token_id: int

    @property
    def max_depth(self) -> int:
        return min(self.block, self.budget) - 1

    @property
    def window(self) -> int:
        """KV slots a round writes per request: the draft block and the tree share them."""
        return max(self.block, self.budget)


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
    if not isinstance(dflash, Mapping):
        _fail("dflash_config", dflash, "an object", "use a head in DFlash's checkpoint format")
    _refuse_variants(head, dflash)
    _check_glance_keys(head)

    def field(name: str) -> Any:
        return dflash.get(name, head.get(name))

    block = field("block_size")
    if not _is_int(block) or block < 2:
        _fail("block_size", block, "an integer of at least 2", "set it to the trained block")
    mask_id, vocab = field("mask_token_id"), target["vocab_size"]
    if not _is_int(mask_id) or not 0 <= mask_id < vocab:
        _fail("dflash_config.mask_token_id", mask_id, f"an id in [0, {vocab})", "set it explicitly")
    taps = _parse_taps(field("target_layer_ids"), target["num_hidden_layers"])
    _check_sizes(head, field("num_target_layers"), target)
    _check_attention(head)
    return GlanceConfig(
        block=block, budget=DEFAULT_BUDGET, topk=DEFAULT_TOPK, taps=taps, mask_token_id=mask_id
    )


def _refuse_variants(head: Mapping[str, Any], dflash: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED_DFLASH:
        got = dflash.get(name, head.get(name))
        # Of these only a multiplier is neutral at one; `true` equals one and is not.
        neutral = not got or (name == "output_multiplier" and got == 1 and got is not True)
        if not neutral:
            _fail(
                f"dflash_config.{name}",
                got,
                "absent",
                "GLANCE serves plain DFlash heads; this variant is not supported",
            )
    _refuse_unknown("dflash_config", set(dflash) - set(_UNSUPPORTED_DFLASH), _DFLASH_KEYS)


def _check_glance_keys(head: Mapping[str, Any]) -> None:
    extra = head.get("glance_config") or {}
    if not isinstance(extra, Mapping):
        _fail("glance_config", extra, "an object", "copy it from the trained head")
    _refuse_unknown("glance_config", set(extra), _GLANCE_KEYS)
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


def _check_attention(head: Mapping[str, Any]) -> None:
    for name in ("rope_scaling", "rope_parameters"):
        if "mrope_section" in (head.get(name) or {}):
            _fail(
                name,
                head[name],
                "no mrope_section",
                "the head runs on plain 1-D positions; drop the target's M-RoPE block",
            )
    layers = head.get("layer_types")
    if layers is not None and list(layers) != ["full_attention"] * head["num_hidden_layers"]:
        _fail(
            "layer_types",
            layers,
            f"{head['num_hidden_layers']} times 'full_attention'",
            "heads with other layers are not supported",
        )


def resolve(
    base: GlanceConfig, *, block: int | None, budget: int | None, topk: int | None
) -> GlanceConfig:
    """Apply the flags (None = not given) to a head's config. Raises :class:`Refusal`, which names
    the flag.

    ``block`` may be below the trained one, not above it.
    """
    block = base.block if block is None else block
    if not 2 <= block <= base.block:
        raise Refusal(
            f"--speculative-dflash-block-size: got {block}, expected 2..{base.block} "
            f"(the head was trained on blocks of {base.block}); omit the flag to use that"
        )
    topk = base.topk if topk is None else topk
    if topk < 1:
        raise Refusal(f"--speculative-eagle-topk: got {topk}, expected at least 1 (1 = chain)")
    limit = max_nodes(block, topk)
    if budget is None:
        budget = block if topk == 1 else min(base.budget, limit)
    if budget < 2:
        raise Refusal(
            f"--speculative-num-draft-tokens: got {budget}, expected at least 2, the root and one "
            "drafted token"
        )
    if budget > limit:
        raise Refusal(
            f"--speculative-num-draft-tokens: got {budget}, expected 2..{limit} "
            f"(a block of {block} with {topk} candidates an offset has {limit} nodes)"
        )
    try:
        check_shape(block, topk, budget)
    except ValueError as error:
        raise Refusal(
            f"--speculative-num-draft-tokens {budget} with --speculative-eagle-topk {topk} and "
            f"--speculative-dflash-block-size {block}: {error}"
        ) from None
    return msgspec.structs.replace(base, block=block, budget=budget, topk=topk)
