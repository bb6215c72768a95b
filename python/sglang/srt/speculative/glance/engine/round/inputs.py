"""The three inputs SGLang carries for GLANCE: between rounds, for the block, for the verify."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocation import alloc_for_spec_decode
from sglang.srt.mem_cache.allocation_sizing import (
    get_alloc_reserve_per_decode,
    page_aligned_decode_alloc_lens,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.utils.common import async_h2d


class GlanceDraftInput(DFlashDraftInputV2):
    """State between rounds: ``bonus_tokens [bs] int64`` (the next root), ``new_seq_lens [bs]``."""

    @classmethod
    def create(cls, root_tokens: torch.Tensor, new_seq_lens: torch.Tensor) -> GlanceDraftInput:
        bs, device = new_seq_lens.numel(), root_tokens.device
        return cls(
            topk_p=torch.empty((bs, 0), device=device, dtype=torch.float32),
            topk_index=torch.empty((bs, 0), device=device, dtype=torch.int64),
            bonus_tokens=root_tokens.to(torch.int64),
            new_seq_lens=new_seq_lens.to(torch.int64),
            hidden_states=torch.empty((bs, 0), device=device, dtype=torch.float16),
        )

    def prepare_for_decode(self, batch: Any) -> None:
        """Reserve slots for the next round's window, never past the request's row.

        The host's admission check counts ``get_alloc_reserve_per_decode()``; the row is narrower
        near the context limit, where one window still fits.
        """
        if batch.batch_size() == 0:
            return
        batch.maybe_evict_swa()
        page_size = batch.token_to_kv_pool_allocator.page_size
        cur, nxt, _ = page_aligned_decode_alloc_lens(
            batch.reqs, reserve=get_alloc_reserve_per_decode(), page_size=page_size
        )
        row = batch.req_to_token_pool.req_to_token.shape[1] // page_size * page_size
        nxt = [max(c, min(n, row)) for c, n in zip(cur, nxt, strict=True)]
        cur_cpu, nxt_cpu = (torch.tensor(lens, dtype=torch.int32) for lens in (cur, nxt))
        alloc_for_spec_decode(
            batch.tree_cache,
            batch.req_to_token_pool,
            reqs=batch.reqs,
            req_pool_indices=batch.req_pool_indices,
            cur_kv_lens=async_h2d(cur, dtype=torch.int32, device=batch.device),
            cur_kv_lens_cpu=cur_cpu,
            nxt_kv_lens=async_h2d(nxt, dtype=torch.int32, device=batch.device),
            nxt_kv_lens_cpu=nxt_cpu,
            num_needed_tokens=sum(nxt) - sum(cur),
            batch=batch,
        )
        for req in batch.reqs:
            req.decode_batch_idx += 1
        # Committed lengths; under overlap the resolve step overwrites them with published ones.
        committed = [req.kv.kv_committed_len for req in batch.reqs]
        batch.seq_lens_cpu = torch.tensor(committed, dtype=torch.int64)
        batch.seq_lens_sum = sum(committed)
        self.nxt_kv_lens_cpu, self.nxt_kv_lens_sum = nxt_cpu, sum(nxt)


class GlanceBlockInput(DFlashVerifyInput):
    """The draft block: B tokens a request that all see each other. No mask: the head's layers are
    encoder-only, which every backend takes as non-causal."""

    tree_topk = 1  # read by intel_amx: 1 = no mask


class GlanceVerifyInput(EagleVerifyInput):
    """The tree: N nodes a request, each seeing the prefix and its own ancestors."""

    @property
    def tree_topk(self) -> int:
        return -1  # irregular tree: 1 would make a backend drop the mask
