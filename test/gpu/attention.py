"""FlashInfer's attention over a candidate tree, with this project's mask, against plain softmax."""

from __future__ import annotations

import torch
from sglang.srt.speculative.glance.kernels.select import ops_for

HEADS, KV_HEADS, SIZE = 8, 2, 64
PREFIXES = (1, 17, 300, 4001)
BLOCK, TOPK, BUDGET = 16, 8, 32
TOLERANCE = 2e-2  # bfloat16 values of unit scale


def tree_masks(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ancestors ``[bs, N, N] bool`` of random trees, and the mask as FlashInfer reads it."""
    ops, bs = ops_for(device), len(PREFIXES)
    torch.manual_seed(0)
    ids = torch.rand(bs, BLOCK - 1, 1000, device=device).topk(TOPK).indices
    logprobs = torch.randn(bs, BLOCK - 1, TOPK, device=device).log_softmax(-1)
    roots = torch.zeros(bs, dtype=torch.int64, device=device)
    tree = ops.build_tree(roots, ids, logprobs, BUDGET)
    ancestors = ops.ancestor_mask(tree.parents, BLOCK - 1)
    lens = torch.tensor(PREFIXES, device=device)
    return ancestors, ops.full_mask(ancestors, lens, sum(PREFIXES))


def largest_error(page_size: int) -> float:
    """Largest absolute difference from the reference, over requests of several prefix lengths."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    device = torch.device("cuda")
    ancestors, mask = tree_masks(device)
    totals = [prefix + BUDGET for prefix in PREFIXES]
    pages = [-(-total // page_size) for total in totals]
    kv = torch.randn(sum(pages), 2, page_size, KV_HEADS, SIZE, device=device).bfloat16()
    q = torch.randn(len(PREFIXES) * BUDGET, HEADS, SIZE, device=device).bfloat16()

    def running(counts: list[int]) -> torch.Tensor:
        return torch.tensor([0, *counts], device=device).cumsum(0).int()

    last = [total - (count - 1) * page_size for total, count in zip(totals, pages, strict=True)]
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        running([BUDGET] * len(PREFIXES)),
        running(pages),
        torch.arange(sum(pages), device=device).int(),
        torch.tensor(last, device=device).int(),
        HEADS,
        KV_HEADS,
        SIZE,
        page_size,
        custom_mask=mask,
        q_data_type=torch.bfloat16,
    )
    got = wrapper.run(q, kv).view(len(PREFIXES), BUDGET, HEADS, SIZE)
    worst, first = 0.0, 0
    for number, (total, count) in enumerate(zip(totals, pages, strict=True)):
        keys, values = kv[first : first + count].unbind(1)
        k, v = (part.reshape(-1, KV_HEADS, SIZE)[:total] for part in (keys, values))
        expected = reference(q.view(*got.shape)[number], k, v, ancestors[number])
        worst = max(worst, (got[number].float() - expected).abs().max().item())
        first += count
    return worst


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ancestors: torch.Tensor
) -> torch.Tensor:
    """``q [N, heads, D]``, ``k`` and ``v [prefix + N, kv heads, D]`` -> ``[N, heads, D]`` float32:
    each node sees the prefix and its ancestors."""
    shared = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(shared, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) / q.shape[-1] ** 0.5
    seen = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device)
    seen[:, len(k) - len(q) :] = ancestors
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
