"""The worker: propose, verify, accept, commit."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.glance.core.accept import Accepted, shorten
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine import commit, seams
from sglang.srt.speculative.glance.engine.adjustments import watch_ends_of_grammars
from sglang.srt.speculative.glance.engine.args import load_config
from sglang.srt.speculative.glance.engine.capture import install_capture
from sglang.srt.speculative.glance.engine.cpu import StackedContextKV, suit_head
from sglang.srt.speculative.glance.engine.draft import BlockDrafter
from sglang.srt.speculative.glance.engine.graphs import GraphMarginals, use_verify_graphs
from sglang.srt.speculative.glance.engine.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.metrics import PlainRounds
from sglang.srt.speculative.glance.engine.rounds import RoundLog
from sglang.srt.speculative.glance.engine.sampling import plain_reason
from sglang.srt.speculative.glance.engine.verify import TreeVerifier, Verified
from sglang.srt.speculative.glance.engine.window import Window, widen
from sglang.srt.speculative.glance.kernels.select import ops_for, warm
from sglang.srt.utils.common import async_h2d


class GlanceWorker(DFlashWorkerV2):
    """GLANCE beside SGLang's scheduler.

    From DFLASH's worker it takes the draft runner, the pools and the prefill half (which writes
    the head's K/V for every prompt token before it returns). The decode round is its own.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        seams.require()
        self.config = load_config(resolving_view(server_args))
        install_capture(target_worker.model_runner.model)
        use_verify_graphs(target_worker.model_runner)
        with self._draft_leaves():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.speculative_num_draft_tokens = self.config.budget
        append = self._append_target_hidden_to_draft_kv_by_loc
        if self.device == "cpu":
            suit_head(self.draft_model)
            self.context_kv = partial(commit.layerwise_kv, self.draft_model)
            if StackedContextKV.serves(self.draft_model):
                self.context_kv = StackedContextKV(self.draft_model)
            self.committer = commit.RowCommitter(self.config.budget, append)
        else:
            self.committer = commit.FixedShapeCommitter(self.config.budget, append)
        self.rounds = RoundLog.from_env(self.device, self.config)
        self.plain_rounds = PlainRounds.from_host()

    def _draft_leaves(self) -> Any:
        """The draft runner reads block-wide, unbranched settings where the target reads N and K."""
        return get_spec().override(
            speculative_num_draft_tokens=self.config.block, speculative_eagle_topk=1
        )

    def _defer_target_verify_gather(self) -> None:
        return None  # every node's full row of logits is read

    def init_attention_backends(self) -> None:
        with self._draft_leaves():
            super().init_attention_backends()
        target, device = self.model_runner, torch.device(self.device)
        for backend in self.spec_v2_attn_backends:
            widen(backend, self.config.window)
        self.window = Window(
            self.config.window,
            target.model_config.context_len,
            target.req_to_token_pool.req_to_token,
        )
        self.drafter = BlockDrafter(self.config, target, self.draft_model_runner)
        self.ops = ops_for(device)
        warm(self.ops, self.config.block, self.config.topk, self.config.budget, device)
        self.verifier = TreeVerifier(self.config, self._target_worker, self.ops)

    def _maybe_build_draft_sampler(self) -> GraphMarginals:
        """Called by the parent when it captures the draft pass."""
        max_bs = max(get_exec().graph.cuda_graph_config.decode.bs)
        self.drafter.graph_marginals = GraphMarginals(self.drafter, max_bs)
        return self.drafter.graph_marginals

    def init_cuda_graphs(self) -> None:
        with self._draft_leaves():
            super().init_cuda_graphs()

    def prewarm_sampling(self) -> Any:
        return self.model_runner.prewarm_sampling()

    def _make_next_draft_input_prefill(
        self, *, bonus_tokens: torch.Tensor, seq_lens: torch.Tensor
    ) -> GlanceDraftInput:
        return GlanceDraftInput.create(bonus_tokens, seq_lens)

    def _append_target_hidden_sequential(
        self, ctx_hidden: torch.Tensor, ctx_positions: torch.Tensor, ctx_cache_loc: torch.Tensor
    ) -> None:
        """The parent's prefill half ends here where it has no fused kernel. On a CPU the head's
        projections may be packed, which the parent's would slice."""
        if self.device != "cpu":
            return super()._append_target_hidden_sequential(
                ctx_hidden, ctx_positions, ctx_cache_loc
            )
        pool = self.draft_model_runner.token_to_kv_pool
        layers_kv = self.context_kv(ctx_hidden, ctx_positions)
        commit.write_head_kv(self.draft_model, pool, layers_kv, ctx_cache_loc)

    def _validate_phase1_sampling_support(self, batch: Any) -> None:
        """The parent would log that it verifies greedily: not here, on any device."""

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.verifier.begin(batch)
            return super().forward_batch_generation(batch, on_publish)
        return self.decode_round(batch, on_publish, grammar_barrier)

    @torch.inference_mode()
    def decode_round(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None
    ) -> GenerationBatchResult:
        config, roots, prefix_lens = self.config, batch.spec_info.bonus_tokens, batch.seq_lens
        if prefix_lens.is_cuda:  # under overlap it comes from another stream
            prefix_lens.record_stream(torch.cuda.current_stream())
        self.rounds.start()
        window = self.window.slots(batch.req_pool_indices, prefix_lens)

        marginals = self.drafter.propose(batch, roots, window[:, : config.block])
        self.rounds.lap("draft")
        tree = self.ops.build_tree(roots, marginals.ids, marginals.logprobs, config.budget)
        self.rounds.lap("tree")
        verified = self.verifier.verify(
            batch, tree, window[:, : config.budget], self.rounds, grammar_barrier
        )
        self.rounds.lap("verify")
        accepted, num_plain = self._accept(batch, tree, verified.target_tokens)
        new_seq_lens = prefix_lens + accepted.accept_lens
        if on_publish is not None:
            on_publish(new_seq_lens)
        self.rounds.lap("accept")
        rows = self.committer.commit(batch, accepted, verified.hidden, window)
        self.rounds.lap("commit")
        self.rounds.end(accepted.accept_lens, [req.rid for req in batch.reqs], num_plain)
        if batch.return_logprob:
            compute_spec_logprobs(
                batch, verified.output, verified.target_tokens.view(-1), accept_index=rows
            )
        return self._result(accepted, verified, new_seq_lens)

    def _accept(self, batch: Any, tree: Tree, target_tokens: torch.Tensor) -> tuple[Accepted, int]:
        """What the round commits, and how many requests could take one token only."""
        accepted = self.ops.walk(tree.tokens, tree.parents, target_tokens, self.config.max_depth)
        limits = self.window.room(batch.seq_lens)
        reasons = [plain_reason(req) for req in batch.reqs]
        if any(reasons):
            free = async_h2d(
                [reason is None for reason in reasons], dtype=torch.int64, device=limits.device
            )
            limits = limits * free
            self.plain_rounds.count([reason for reason in reasons if reason is not None])
            watch_ends_of_grammars(batch.reqs)
        accepted = shorten(accepted, limits)
        self.verifier.counts.note(batch, tree, accepted)
        return accepted, len(reasons) - reasons.count(None)

    def _result(
        self, accepted: Accepted, verified: Verified, new_seq_lens: torch.Tensor
    ) -> GenerationBatchResult:
        return GenerationBatchResult(
            logits_output=verified.output,
            next_token_ids=accepted.committed.view(-1),
            accept_lens=accepted.accept_lens.to(torch.int32),
            can_run_cuda_graph=verified.ran_graph,
            speculative_num_draft_tokens=self.config.budget,
            speculative_output_stride=accepted.committed.shape[1],
            next_draft_input=GlanceDraftInput.create(accepted.bonus, new_seq_lens),
            new_seq_lens=new_seq_lens,
            extra_keep_alive_refs=[verified.keep_alive],
        )
