"""CUDA graphs: the N-wide verify captured with its mask, the draft block with its marginals."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.speculative.glance.engine.round.draft import BlockDrafter, Marginals
from sglang.srt.speculative.glance.engine.round.inputs import GlanceVerifyInput


class GlanceVerifyGraphRunner(DecodeCudaGraphRunner):
    """The target's decode graphs. Upstream's runner would capture the DFLASH family's verify
    without a mask, and a replay would then attend causally, with no error on some backends."""

    def get_spec_info(self, num_tokens: int) -> GlanceVerifyInput:
        return GlanceVerifyInput(
            draft_token=None,
            custom_mask=self.buffers.custom_mask,
            positions=None,
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=self.captured_req_width - 1,
            topk=-1,
            draft_token_num=self.captured_req_width,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )


def use_verify_graphs(target_runner: Any) -> None:
    """Make ``target_runner`` build :class:`GlanceVerifyGraphRunner`; this instance only."""
    target_runner._decode_cuda_graph_runner_cls = lambda: GlanceVerifyGraphRunner


class GraphMarginals:
    """Top-K marginals as the tail of the captured draft pass, in buffers of fixed address.

    Called by the host's capture hook with the head's hidden states ``[bs * B, H]``.
    """

    def __init__(self, drafter: BlockDrafter, max_bs: int) -> None:
        self.drafter = drafter
        shape = (max_bs, drafter.config.block - 1, drafter.config.topk)
        device = drafter.target_runner.device
        self.ids = torch.empty(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.empty(shape, dtype=torch.float32, device=device)

    def __call__(self, hidden: torch.Tensor, input_ids: torch.Tensor | None = None) -> None:
        marginals = self.drafter.marginals(hidden)
        bs = len(marginals.ids)
        self.ids[:bs] = marginals.ids
        self.logprobs[:bs] = marginals.logprobs

    def read(self, bs: int) -> Marginals:
        """What the last replay wrote for its first ``bs`` requests."""
        return Marginals(self.ids[:bs], self.logprobs[:bs])
