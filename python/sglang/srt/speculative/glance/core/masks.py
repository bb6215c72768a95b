"""The two layouts in which SGLang's attention backends read a tree mask.

True means "may attend". QLEN holds the N x N block of each request; FULL holds, request after
request, N rows of prefix + N columns, whose prefix columns are all True.
"""

from __future__ import annotations

import torch


def qlen_mask(ancestors: torch.Tensor) -> torch.Tensor:
    """[bs*N*N] bool from ancestors [bs, N, N] bool."""
    return ancestors.flatten()


def full_mask_numel(bs: int, num_nodes: int, prefix_lens_sum: int) -> int:
    """Entries of the FULL layout."""
    return num_nodes * (prefix_lens_sum + bs * num_nodes)


def fill_full_mask(ancestors: torch.Tensor, prefix_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Write the FULL layout to the front of `out`; what lies behind is left alone.

    ancestors [bs, N, N] bool; prefix_lens [bs] int; out [>= full_mask_numel] bool or uint8. The
    length is not checked: it depends on values that live on the device.
    """
    num_nodes = ancestors.shape[1]
    nodes = torch.arange(num_nodes, device=ancestors.device)
    row_lens = prefix_lens.to(torch.int64) + num_nodes
    starts = num_nodes * (row_lens.cumsum(0) - row_lens)
    rows = starts[:, None] + nodes * row_lens[:, None]
    tree_columns = (row_lens - num_nodes)[:, None, None] + nodes
    live = torch.arange(out.numel(), device=out.device) < num_nodes * row_lens.sum()
    out.masked_fill_(live, 1)
    out.scatter_(0, (rows[:, :, None] + tree_columns).flatten(), ancestors.flatten().to(out.dtype))


def full_mask(
    ancestors: torch.Tensor, prefix_lens: torch.Tensor, prefix_lens_sum: int
) -> torch.Tensor:
    """A new mask in the FULL layout, [N * sum(prefix + N)] bool."""
    bs, num_nodes, _ = ancestors.shape
    numel = full_mask_numel(bs, num_nodes, prefix_lens_sum)
    out = torch.empty(numel, dtype=torch.bool, device=ancestors.device)
    fill_full_mask(ancestors, prefix_lens, out)
    return out
