"""One frozen description of a GLANCE run, from the head's ``config.json`` and SGLang's flags."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
from sglang.srt.speculative.glance.core.tree import check_shape, max_nodes
from sglang.srt.speculative.glance.head_fields import (
    check_glance_names,
    check_layers,
    check_names,
    fail,
)
from sglang.srt.speculative.glance.head_rotation import rotation
from sglang.srt.speculative.glance.refusal import Refusal

DEFAULT_BUDGET = 32
DEFAULT_TOPK = 8
SIZES = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings"),
)


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


ARCHITECTURE = "DFlashDraftModel"
# Families whose config SGLang's draft model is built from alike, where all that it reads is given.
MODEL_TYPES = ("qwen3", "qwen3_vl_text")


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
        fail("dflash_config", dflash, "an object", "use a head in DFlash's checkpoint format")
    check_names(head, dflash)
    _check_kind(head)
    _check_glance_config(head)

    def field(name: str) -> Any:
        return dflash.get(name, head.get(name))

    block = field("block_size")
    if not _is_int(block) or block < 2:
        fail("block_size", block, "an integer of at least 2", "set it to the trained block")
    mask_id, vocab = field("mask_token_id"), target["vocab_size"]
    if not _is_int(mask_id) or not 0 <= mask_id < vocab:
        fail("dflash_config.mask_token_id", mask_id, f"an id in [0, {vocab})", "set it explicitly")
    taps = _parse_taps(field("target_layer_ids"), target["num_hidden_layers"])
    _check_sizes(head, field("num_target_layers"), target)
    check_layers(head)
    rotation(head)
    return GlanceConfig(
        block=block, budget=DEFAULT_BUDGET, topk=DEFAULT_TOPK, taps=taps, mask_token_id=mask_id
    )


def _check_kind(head: Mapping[str, Any]) -> None:
    names, family = head.get("architectures"), head.get("model_type")
    if names != [ARCHITECTURE]:
        fail("architectures", names, f"[{ARCHITECTURE!r}]", "other kinds of heads are not served")
    if family not in MODEL_TYPES:
        fail("model_type", family, f"one of {MODEL_TYPES}", "copy it from the trained head")


def _check_glance_config(head: Mapping[str, Any]) -> None:
    extra = head.get("glance_config") or {}
    if not isinstance(extra, Mapping):
        fail("glance_config", extra, "an object", "copy it from the trained head")
    check_glance_names(extra)
    trained = extra.get("target_fingerprint")
    if trained is not None and not isinstance(trained, str):
        fail(
            "glance_config.target_fingerprint",
            trained,
            "the string that the trainer wrote",
            "copy it from the trained head, or remove it",
        )


def trained_target(head: Mapping[str, Any]) -> str | None:
    """Fingerprint of the target that a head was trained for; None where its config has none."""
    return (head.get("glance_config") or {}).get("target_fingerprint")


def _parse_taps(taps: Any, num_layers: int) -> tuple[int, ...]:
    field = "dflash_config.target_layer_ids"
    # The last layer's output is never captured by the host: a head that taps it reads nothing.
    expected = f"distinct ascending layer ids in [0, {num_layers - 2}]"
    mend = "list the layers the head was trained on"
    if not isinstance(taps, (list, tuple)) or not taps or not all(map(_is_int, taps)):
        fail(field, taps, expected, mend)
    ascending = all(a < b for a, b in pairwise(taps))
    if not ascending or taps[0] < 0 or taps[-1] > num_layers - 2:
        fail(field, list(taps), expected, mend)
    return tuple(taps)


def _check_sizes(head: Mapping[str, Any], trained_layers: Any, target: Mapping[str, Any]) -> None:
    layers, mend = target["num_hidden_layers"], "serve the target this head was trained for"
    if trained_layers is not None and trained_layers != layers:
        fail("num_target_layers", trained_layers, f"{layers} as in the target", mend)
    for name in ("hidden_size", "vocab_size", "draft_vocab_size"):
        got, wanted = head.get(name), target[name.removeprefix("draft_")]
        if got != wanted and not (name != "hidden_size" and got is None):
            fail(name, got, f"{wanted} as in the target", mend)
    for name in SIZES:
        if not _is_int(head.get(name)) or head[name] < 1:
            fail(name, head.get(name), "a positive integer", "copy it from the trained head")
    eps, bias = head.get("rms_norm_eps", 1e-6), head.get("attention_bias", False)
    if not isinstance(eps, float) or not 0 < eps < 1:
        fail("rms_norm_eps", eps, "a small positive number", "copy it from the trained head")
    if not isinstance(bias, bool):
        fail("attention_bias", bias, "true or false", "copy it from the trained head")
    heads, kv_heads = head["num_attention_heads"], head["num_key_value_heads"]
    if heads % kv_heads:
        fail(
            "num_key_value_heads",
            kv_heads,
            f"a divisor of num_attention_heads ({heads})",
            "copy it from the trained head",
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
