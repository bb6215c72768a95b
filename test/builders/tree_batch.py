"""Requests with random trees, whose KV lies in scattered slots, and how each node attends."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import verify_reference as reference
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.glance.core.masks import full_mask
from sglang.srt.speculative.glance.core.tree import ancestor_mask, tree_links


class TreeBatch:
    """Trees of N nodes. ``mask`` has the FULL layout."""

    def __init__(
        self,
        seed: int,
        device: torch.device,
        num_nodes: int = 12,
        prefix_lens: Sequence[int] = (7, 0),
        num_slots: int = 128,
    ) -> None:
        rng = random.Random(seed)
        self.device = device
        self.num_nodes, self.num_slots = num_nodes, num_slots
        self.prefix_lens = list(prefix_lens)
        self.parents_of = [
            [-1] + [rng.randrange(n) for n in range(1, num_nodes)] for _ in prefix_lens
        ]
        free = rng.sample(range(num_slots), sum(prefix_lens) + len(prefix_lens) * num_nodes)
        self.slots_of = []
        for prefix_len in prefix_lens:
            self.slots_of.append(free[: prefix_len + num_nodes])
            free = free[prefix_len + num_nodes :]
        self.parents = torch.tensor(self.parents_of, device=device)
        self.seq_lens = torch.tensor(self.prefix_lens, device=device)
        self.mask = full_mask(ancestor_mask(self.parents), self.seq_lens, sum(prefix_lens))

    def flashinfer_arguments(self) -> tuple[torch.Tensor, ...]:
        """``qo_indptr, kv_indptr, kv_indices, mask``, built by SGLang's code from ours."""
        rows = torch.arange(len(self.prefix_lens), 0, -1, device=self.device)
        longest = max(self.prefix_lens) + self.num_nodes
        req_to_token = torch.zeros(len(rows) + 1, longest, dtype=torch.int32, device=self.device)
        for row, slots in zip(rows.tolist(), self.slots_of, strict=True):
            req_to_token[row, : len(slots)] = torch.tensor(slots)
        translator = KVIndexTranslator(
            req_to_token=req_to_token,
            token_to_kv_pool_allocator=None,
            token_to_kv_pool=None,
            page_size=1,
            device=str(self.device),
        )
        plan = translator.plan(
            req_pool_indices=rows,
            seq_lens=self.seq_lens,
            seq_lens_cpu=self.seq_lens.cpu(),
            write_virtual=None,
            read_extent=self.num_nodes,
        )
        kv_indices, kv_indptr, qo_indptr, mask = self._verify_input().generate_attn_arg_prefill(
            req_pool_indices=rows,
            paged_kernel_lens=self.seq_lens,
            paged_kernel_lens_sum=sum(self.prefix_lens),
            translator=translator,
            plan=plan,
        )
        return qo_indptr, kv_indptr, kv_indices, mask

    def _verify_input(self) -> EagleVerifyInput:
        index, child, sibling = tree_links(self.parents)
        return EagleVerifyInput(
            draft_token=index.flatten(),
            custom_mask=self.mask,
            positions=None,
            retrieve_index=index,
            retrieve_next_token=child,
            retrieve_next_sibling=sibling,
            retrieve_cum_len=None,
            spec_steps=15,
            topk=8,
            draft_token_num=self.num_nodes,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )

    def slow_attention(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Each node over the prefix and its own ancestors, node by node, in float32.

        ``queries [nodes, heads, dim]``; ``keys``, ``values [slots, KV heads, dim]``.
        """
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (keys, values))
        out = torch.empty(queries.shape, device=queries.device)
        visible = [
            slots
            for parents, prefix_len, kv_slots in zip(
                self.parents_of, self.prefix_lens, self.slots_of, strict=True
            )
            for slots in reference.visible_slots(parents, prefix_len, kv_slots)
        ]
        for node, slots in enumerate(visible):
            query = queries[node].float() / queries.shape[-1] ** 0.5
            weights = torch.softmax(torch.einsum("hd,shd->hs", query, keys[slots]), dim=-1)
            out[node] = torch.einsum("hs,shd->hd", weights, values[slots])
        return out
