"""FlashInfer's check, with a FlashInfer of a few slow lines in its place."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from gpu import attention


class Wrapper:
    """What the real one documents of ``plan`` and ``run``, for pages of one token."""

    reads_mask = True

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert workspace.dtype == torch.uint8 and layout == "NHD"

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        last_page_lens: torch.Tensor,
        heads: int,
        kv_heads: int,
        dim: int,
        page: int,
        *,
        custom_mask: torch.Tensor | None,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert (page, q_data_type, kv_data_type) == (1, torch.bfloat16, torch.bfloat16)
        assert qo_indptr.dtype == kv_indptr.dtype == kv_indices.dtype == torch.int32
        assert len(qo_indptr) == len(kv_indptr) == len(last_page_lens) + 1
        self.bounds = list(zip(qo_indptr, qo_indptr[1:], kv_indptr, kv_indptr[1:]))
        self.indices = kv_indices.long()
        self.mask, self.group = custom_mask if self.reads_mask else None, heads // kv_heads
        assert causal is (custom_mask is None)

    def run(self, queries: torch.Tensor, cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        keys, values = (x[:, 0].float().repeat_interleave(self.group, 1) for x in cache)
        out, begin = torch.empty_like(queries), 0
        for first, last, start, end in self.bounds:
            slots, rows = self.indices[start:end], queries[first:last].float()
            shape = (len(rows), len(slots))
            seen = torch.ones(shape, dtype=torch.bool).tril(shape[1] - shape[0])
            if self.mask is not None:
                seen = self.mask[begin : begin + seen.numel()].view(shape)
                begin += seen.numel()
            scores = torch.einsum("qhd,khd->hqk", rows, keys[slots]) / rows.shape[-1] ** 0.5
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[first:last] = torch.einsum("hqk,khd->qhd", weights, values[slots]).to(out.dtype)
        return out


@pytest.mark.parametrize("reads_mask", [True, False])
def test_it_passes_where_the_mask_is_read_and_fails_elsewhere(
    reads_mask: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    kind = type("Kind", (Wrapper,), {"reads_mask": reads_mask})
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=kind)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    assert attention.main("cpu") == (0 if reads_mask else 1)
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == attention.CASES.keys()
    assert all((each["masked"] < attention.TOLERANCE) is reads_mask for each in found.values())
