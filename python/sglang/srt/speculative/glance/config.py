"""One frozen description of a GLANCE run, from the head's ``config.json`` and SGLang's flags."""

from __future__ import annotations

import msgspec
from sglang.srt.speculative.glance.core.tree import check_shape, max_nodes
from sglang.srt.speculative.glance.refusal import Refusal

DEFAULT_BUDGET = 32
DEFAULT_TOPK = 8


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
