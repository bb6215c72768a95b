"""The tree mask in the layout that the running attention backend reads."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.speculative.eagle_utils import TreeMaskMode, default_tree_mask_mode
from sglang.srt.speculative.glance.core.masks import qlen_mask
from sglang.srt.speculative.glance.kernels.select import Ops


def backend_mask(
    ops: Ops,
    backend: Any,
    ancestors: torch.Tensor,
    prefix_lens: torch.Tensor,
    prefix_sum: int | None,
) -> torch.Tensor:
    """Flat bool mask for ``ancestors [bs, N, N]``: query-by-query, or with the prefix columns.

    A backend that owns a buffer for it (captured graphs read that one) gets it filled in place.
    """
    owned = backend.verify_mask
    mode = default_tree_mask_mode() if owned is None else owned.mode
    if mode == TreeMaskMode.QLEN_ONLY:
        mask = qlen_mask(ancestors)
        if owned is not None and owned.fits(len(ancestors)):
            owned.buffer[: mask.numel()] = mask
            return owned.buffer
        return mask
    if owned is not None and owned.fits(len(ancestors)):
        ops.fill_full_mask(ancestors, prefix_lens, owned.buffer)
        return owned.buffer
    if prefix_sum is None:
        prefix_sum = len(ancestors) * backend.max_context_len
    return ops.full_mask(ancestors, prefix_lens, prefix_sum)
