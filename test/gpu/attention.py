"""FlashInfer's paged prefill with our mask against a slow reference: ``attention.py`` prints one
JSON object, and ends with code 1 where they differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

TEST = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TEST), str(TEST / "unit" / "core")]

from builders.tree_batch import TreeBatch  # noqa: E402  the path is set above
from sglang.srt.speculative.glance.core.tree import ancestor_mask  # noqa: E402
from sglang.srt.speculative.glance.kernels.select import ops_for  # noqa: E402

TOLERANCE = 2e-2  # of values around 1, in bfloat16
WORKSPACE = 128 << 20
# num_nodes, prefix_lens, query heads, KV heads, head size
CASES = {
    "a tree of the shipped model": (32, (7, 300, 1), 4, 2, 64),
    "a tree of a large model": (64, (1500, 33), 32, 8, 128),
    "a chain's width": (16, (40, 0, 129, 64), 16, 8, 128),
}


def flashinfer_attention(
    batch: TreeBatch,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """As SGLang calls it. ``mask`` None: each node sees all nodes before it."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    qo_indptr, kv_indptr, kv_indices, _ = batch.flashinfer_arguments()
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=batch.device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    last_page_lens = torch.ones(len(batch.prefix_lens), dtype=torch.int32, device=batch.device)
    wrapper.plan(
        qo_indptr.to(torch.int32),
        kv_indptr.to(torch.int32),
        kv_indices.to(torch.int32),
        last_page_lens,
        queries.shape[1],
        keys.shape[1],
        queries.shape[2],
        1,
        custom_mask=mask,
        causal=mask is None,
        q_data_type=queries.dtype,
        kv_data_type=keys.dtype,
    )
    return wrapper.run(queries, (keys[:, None], values[:, None]))


def errors(device: torch.device, case: tuple) -> dict[str, float]:
    """Largest difference from the reference: with our mask, and causally, which must be wrong."""
    num_nodes, prefix_lens, heads, kv_heads, dim = case
    batch = TreeBatch(0, device, num_nodes, prefix_lens, num_slots=2048)
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(prefix_lens) * num_nodes, heads, dim), *[(2048, kv_heads, dim)] * 2]
    queries, keys, values = (
        torch.randn(shape, generator=generator).to(device, torch.bfloat16) for shape in shapes
    )
    expected = batch.slow_attention(queries, keys, values)
    ancestors = ancestor_mask(batch.parents)
    mask = ops_for(device).full_mask(ancestors, batch.seq_lens, sum(prefix_lens))

    def error(mask: torch.Tensor | None) -> float:
        out = flashinfer_attention(batch, queries, keys, values, mask)
        return (out.float() - expected).abs().max().item()

    return {"masked": error(mask), "causal": error(None)}


def main(device: str = "cuda") -> int:
    found = {name: errors(torch.device(device), case) for name, case in CASES.items()}
    print(json.dumps(found))
    right = all(e["masked"] < TOLERANCE and e["causal"] > 10 * TOLERANCE for e in found.values())
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
