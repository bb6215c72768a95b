"""Verify: one target pass over N tree nodes a request, and one target token for every node."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.positions import tree_positions
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.observe.round_log import RoundLog
from sglang.srt.speculative.glance.engine.round.inputs import GlanceVerifyInput
from sglang.srt.speculative.glance.engine.round.mask_layout import backend_mask
from sglang.srt.speculative.glance.engine.round.mrope import MropeDeltas
from sglang.srt.speculative.glance.engine.round.penalties import OutputCounts
from sglang.srt.speculative.glance.engine.round.penalties import begin as begin_penalties
from sglang.srt.speculative.glance.engine.round.sampling import draw
from sglang.srt.speculative.glance.kernels.select import Ops
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask


class Verified(NamedTuple):
    """``target_tokens [bs, N] int64``: the token the target drew after each node.
    ``hidden [bs * N, taps * H]``: tapped states. ``output``: the host's logits output."""

    target_tokens: torch.Tensor
    hidden: torch.Tensor
    output: Any
    ran_graph: bool
    keep_alive: Any


class TreeVerifier:
    """Runs the target over the tree through SGLang's own verify path."""

    def __init__(self, config: GlanceConfig, target_worker: Any, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        self.worker = target_worker
        self.runner = target_worker.model_runner
        num_rows = self.runner.req_to_token_pool.req_to_token.shape[0]
        model, device = self.runner.model_config, torch.device(self.runner.device)
        self.counts = OutputCounts(num_rows, model.vocab_size, config.max_depth, device)
        self.mrope = MropeDeltas(num_rows, device) if model.model_is_mrope else None

    def begin(self, batch: Any) -> None:
        """Before a prefill: what later rounds need to know of its requests."""
        begin_penalties(batch, self.counts)
        if self.mrope is not None:
            self.mrope.note(batch.req_pool_indices, batch.multimodal_inputs)

    def verify(
        self,
        batch: Any,
        tree: Tree,
        slots: torch.Tensor,
        rounds: RoundLog,
        grammar_barrier: Any = None,
    ) -> Verified:
        """``slots [bs, N]``: the KV index each node's key and value are written to."""
        positions = tree_positions(batch.seq_lens, tree.depths)
        verify_input, links = self._input(batch, tree, positions, slots)
        batch.spec_info = verify_input
        grammar_tree = GrammarTree.from_device(*links, tree.tokens) if batch.has_grammar else None
        forward_batch, ran_graph = eagle_prepare_for_verify(
            verify_input, batch.req_to_token_pool, batch, self.worker
        )
        result = self.worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        output = result.logits_output
        rounds.roots(output.next_token_logits)
        mask = None
        if grammar_tree is not None:
            mask = build_grammar_vocab_mask(
                reqs=batch.reqs,
                tree=grammar_tree,
                sampling_info=batch.sampling_info,
                device=output.next_token_logits.device,
                barrier=grammar_barrier,
            )
        tokens = draw(output, batch, tree, positions, self.counts, mask, self.runner.sampler)
        hidden, output.hidden_states = output.hidden_states, None
        return Verified(tokens, hidden, output, ran_graph, forward_batch)

    def _input(
        self, batch: Any, tree: Tree, positions: torch.Tensor, slots: torch.Tensor
    ) -> tuple[GlanceVerifyInput, tuple[torch.Tensor, torch.Tensor]]:
        index, child, sibling = self.ops.tree_links(tree.parents)
        mrope_positions = None
        if self.mrope is not None:
            mrope_positions = self.mrope.positions(batch.req_pool_indices, positions)
        mask = backend_mask(
            self.ops,
            self.runner.attn_backend,
            self.ops.ancestor_mask(tree.parents, self.config.max_depth),
            batch.seq_lens,
            None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum()),
        )
        verify_input = GlanceVerifyInput(
            draft_token=tree.tokens.view(-1),
            custom_mask=mask,
            positions=positions,
            retrieve_index=index,
            retrieve_next_token=child,
            retrieve_next_sibling=sibling,
            retrieve_cum_len=None,
            spec_steps=self.config.max_depth,
            topk=self.config.topk,
            draft_token_num=tree.tokens.shape[1],
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
            prepared_out_cache_loc=slots.reshape(-1),
            prepared_mrope_positions=mrope_positions,
        )
        return verify_input, (child, sibling)
