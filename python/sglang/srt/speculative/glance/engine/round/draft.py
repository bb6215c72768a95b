"""Propose: one pass of the head over [root, mask x (B-1)] for every request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from sglang.kernels.ops.speculative.lilicorr import lilicorr_topk_lse
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.positions import block_positions
from sglang.srt.speculative.glance.engine.round.inputs import GlanceBlockInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


class Marginals(NamedTuple):
    """Top-K candidates of each drafted offset: ``ids [bs, B-1, K] int64``, ``logprobs`` float32."""

    ids: torch.Tensor
    logprobs: torch.Tensor


# Rows whose logits are held in float32 at a time: 64 * 152 k * 4 bytes are 39 MB. All rows of 48
# blocks of 16 would be 438 MB, and the sum's exponentials as much again, in the graphs' pool.
ROWS_AT_ONCE = 64
# What SGLang's tiled kernel takes: its tiles hold 1024 logits, and it wants one a candidate.
TILED_TOPK, TILED_VOCAB = (1, 2, 4, 8, 16), 16 * 1024


def top_marginals(logits: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``logits [n, V]`` -> ids ``[n, K] int64`` and log-probabilities ``[n, K] float32``."""
    if logits.is_cuda and topk in TILED_TOPK and logits.shape[1] >= TILED_VOCAB:
        values, ids, lse = lilicorr_topk_lse(logits, topk)
        # The kernel's tiles pass the vocabulary's end; NaN logits could pick a place behind it.
        return ids.clamp_(max=logits.shape[1] - 1), values - lse[:, None]
    parts = [_top_of_rows(rows, topk) for rows in logits.split(ROWS_AT_ONCE)]
    ids, logprobs = zip(*parts, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def _top_of_rows(logits: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.float()
    values, ids = torch.topk(logits, topk, dim=-1)
    return ids, values - torch.logsumexp(logits, dim=-1, keepdim=True)


class BlockDrafter:
    """Runs the head on the draft runner. Embedding and LM head are the target's own."""

    def __init__(self, config: GlanceConfig, target_runner: Any, draft_runner: Any) -> None:
        self.config = config
        self.target_runner = target_runner
        self.runner = draft_runner
        model = target_runner.model
        self.embed = model.get_input_embeddings()
        self.lm_head = model.lm_head
        self.logits_processor = model.logits_processor
        # The host's eager path casts `input_embeds` to bfloat16, whatever the model's dtype: the
        # head embeds its own ids instead. A closure, so that no module is registered twice.
        draft_runner.model.forward_embed = lambda ids: self.embed(ids)
        self.graph_marginals: Any = None  # set when the draft pass is captured
        self.block_input = GlanceBlockInput(
            draft_token=torch.empty(0, dtype=torch.int64, device=target_runner.device),
            positions=torch.empty(0, dtype=torch.int64, device=target_runner.device),
            draft_token_num=config.block,
            custom_mask=None,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )

    def propose(self, batch: Any, root_tokens: torch.Tensor, slots: torch.Tensor) -> Marginals:
        """``root_tokens [bs]``, ``slots [bs, B]`` KV indices the block may scribble on."""
        result = self.runner.forward(self._forward_batch(batch, root_tokens, slots))
        if self.graph_marginals is not None and result.can_run_graph:
            return self.graph_marginals.read(len(root_tokens))
        return self.marginals(result.logits_output.hidden_states)

    def marginals(self, hidden: torch.Tensor) -> Marginals:
        """``hidden [bs * B, H]`` of the block, root included, to its offsets' candidates."""
        block, topk = self.config.block, self.config.topk
        masked = hidden.view(-1, block, hidden.shape[-1])[:, 1:].reshape(-1, hidden.shape[-1])
        logits = self.logits_processor._compute_lm_head(masked, self.lm_head)
        ids, logprobs = top_marginals(logits[:, : self.lm_head.org_vocab_size], topk)
        return Marginals(ids.view(-1, block - 1, topk), logprobs.view(-1, block - 1, topk))

    def _forward_batch(self, batch: Any, root_tokens: torch.Tensor, slots: torch.Tensor) -> Any:
        bs, block = slots.shape
        ids = root_tokens.new_full((bs, block), self.config.mask_token_id)
        ids[:, 0] = root_tokens
        prefix_lens_cpu = batch.seq_lens_cpu
        if prefix_lens_cpu is None:  # a GPU-only backend: the reserved length bounds it
            prefix_lens_cpu = batch.spec_info.nxt_kv_lens_cpu
        plan = self.target_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=prefix_lens_cpu,
            write_virtual=slots.reshape(-1),
            read_extent=block,
        )
        # The host bound of the block's reads counts the block itself (the DFLASH contract).
        seq_lens_cpu = prefix_lens_cpu + block
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots.reshape(-1),
            seq_lens_sum=int(seq_lens_cpu.sum()),
            seq_lens_cpu=seq_lens_cpu,
            # 1-D token indices, every image token counted once: never the target's M-RoPE.
            positions=block_positions(batch.seq_lens, block).view(-1),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self.block_input,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )
        plan.bind(forward_batch, self.runner.kv_index_translator)
        return forward_batch
