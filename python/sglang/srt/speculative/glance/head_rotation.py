"""The rotary fields of a head's ``config.json``.

SGLang's draft model reads them as transformers does: ``rope_scaling``, where it is given, in the
place of ``rope_parameters``, and ``rope_theta`` where that object has none. It turns them into one
table of angles over plain token indices. Served are the kinds of tables that are the same in SGLang
and in transformers, where heads are trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.speculative.glance.refusal import refuse_field as fail

_ALWAYS = {"rope_type", "type", "rope_theta"}
_SCALED = {"factor", "original_max_position_embeddings"}
# What both read of each kind. SGLang reads no `attention_factor`; `dynamic` grows its table with
# the text in transformers alone.
KINDS = {
    "default": set(),
    "linear": {"factor"},
    "yarn": _SCALED | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "llama3": _SCALED | {"low_freq_factor", "high_freq_factor"},
}
_MEND = "copy it from the trained head"


def rotation(head: Mapping[str, Any]) -> tuple[str, float]:
    """Kind and base of the table. Refuses one that SGLang would not serve as it was trained."""
    name, rope = _rope(head)
    if "mrope_section" in rope:
        mend = "the head runs on plain 1-D positions; drop the target's M-RoPE block"
        fail(name, rope, "no mrope_section", mend)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in tuple(KINDS) or rope.get("type", kind) != kind:
        fail(name, rope, f"a rope_type of {tuple(KINDS)}", "heads with others are not supported")
    given = {key for key, value in rope.items() if value is not None}
    if rope.get("partial_rotary_factor") == 1:  # the whole head, as without
        given.remove("partial_rotary_factor")
    if unread := sorted(given - _ALWAYS - KINDS[kind]):
        fail(f"{name}.{unread[0]}", rope[unread[0]], f"no such key beside {kind!r}", _MEND)
    if kind != "default" and not _positive(rope.get("factor")):
        fail(f"{name}.factor", rope.get("factor"), "a positive number", _MEND)
    thetas = [t for t in (head.get("rope_theta"), rope.get("rope_theta")) if t is not None]
    if not thetas or not all(map(_positive, thetas)):
        fail("rope_theta", thetas[0] if thetas else None, "a positive number", _MEND)
    if thetas[0] != thetas[-1]:
        fail("rope_theta", thetas[0], f"{thetas[-1]!r} as in {name}", "keep the trained one")
    return kind, float(thetas[0])


def _rope(head: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The object that counts, and its field."""
    found = {name: head.get(name) or {} for name in ("rope_scaling", "rope_parameters")}
    for name, rope in found.items():
        if not isinstance(rope, Mapping):
            fail(name, rope, "an object or null", _MEND)
    scaling, parameters = found.values()
    if scaling and parameters and scaling != parameters:
        fail("rope_scaling", scaling, f"{parameters!r} as in rope_parameters", "keep one of them")
    return ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
