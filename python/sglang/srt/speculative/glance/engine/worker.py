"""The worker: propose, verify, accept, commit."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.glance.core.accept import shorten
from sglang.srt.speculative.glance.core.positions import block_positions
from sglang.srt.speculative.glance.engine import commit, seams
from sglang.srt.speculative.glance.engine.adjustments import watch_ends_of_grammars
from sglang.srt.speculative.glance.engine.capture import install_capture
from sglang.srt.speculative.glance.engine.cpu import StackedContextKV, suit_head
from sglang.srt.speculative.glance.engine.draft import BlockDrafter
from sglang.srt.speculative.glance.engine.graphs import GraphMarginals, use_verify_graphs
from sglang.srt.speculative.glance.engine.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.metrics import PlainRounds
from sglang.srt.speculative.glance.engine.models import load_config
from sglang.srt.speculative.glance.engine.penalties import resume
from sglang.srt.speculative.glance.engine.rounds import RoundLog
from sglang.srt.speculative.glance.engine.sampling import keep_path_masks, plain_reason
from sglang.srt.speculative.glance.engine.verify import TreeVerifier
from sglang.srt.speculative.glance.engine.watch import AcceptWatch
from sglang.srt.speculative.glance.engine.weights import HeadUpdater
from sglang.srt.speculative.glance.kernels.select import ops_for


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
        if self.device == "cpu":
            suit_head(self.draft_model)
        self.context_kv = self._context_kv()
        runner = self.draft_model_runner
        runner.weight_updater = HeadUpdater(runner.weight_updater, self._head_changed)
        self.rounds = RoundLog.from_env(self.device, self.config)
        self.plain_rounds = PlainRounds.from_host()
        self.watch = AcceptWatch(get_spec().speculative_draft_model_path)

    def _context_kv(self) -> Any:
        if self.device == "cpu" and StackedContextKV.serves(self.draft_model):
            return StackedContextKV(self.draft_model)
        return partial(commit.layerwise_kv, self.draft_model)

    def _head_changed(self) -> None:
        """Make anew what holds copies of the head's weights."""
        self.context_kv = self._context_kv()
        if self._use_fused_kv_materialize:
            self._init_fused_kv_helper()

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
        self.drafter = BlockDrafter(self.config, self.model_runner, self.draft_model_runner)
        self.ops = ops_for(torch.device(self.device))
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
        """The parent's prefill half ends here where it has no fused kernel."""
        pool = self.draft_model_runner.token_to_kv_pool
        layers_kv = self.context_kv(ctx_hidden, ctx_positions)
        commit.write_head_kv(self.draft_model, pool, layers_kv, ctx_cache_loc)

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            resume(batch)
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
        window = self._window(batch)

        marginals = self.drafter.propose(batch, roots, window[:, : config.block])
        self.rounds.lap("draft")
        tree = self.ops.build_tree(roots, marginals.ids, marginals.logprobs, config.budget)
        self.rounds.lap("tree")
        verified = self.verifier.verify(
            batch, tree, window[:, : config.budget], self.rounds, grammar_barrier
        )
        self.rounds.lap("verify")
        accepted = self.ops.walk(
            tree.tokens, tree.parents, verified.target_tokens, config.max_depth
        )
        alone = [reason for req in batch.reqs if (reason := plain_reason(req)) is not None]
        if alone:
            accepted = shorten(accepted, self._limits(batch))
            self.plain_rounds.count(alone)
            self.watch.exclude(len(alone))
            watch_ends_of_grammars(batch.reqs)
        self.verifier.history.note(batch, accepted)
        keep_path_masks(verified.output, batch.sampling_info, accepted, config.budget)
        new_seq_lens = prefix_lens + accepted.accept_lens
        if on_publish is not None:
            on_publish(new_seq_lens)
        self.rounds.lap("accept")
        rows = self._commit(batch, accepted, verified, window, prefix_lens)
        self.rounds.lap("commit")
        self.rounds.end(accepted.accept_lens, [req.rid for req in batch.reqs], len(alone))
        if batch.return_logprob:
            compute_spec_logprobs(
                batch, verified.output, verified.target_tokens.view(-1), accept_index=rows
            )
        return self._result(accepted, verified, new_seq_lens)

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        """Called by the host once a round's lengths have reached it."""
        self.watch.note(num_correct_drafts_per_req)

    def _window(self, batch: Any) -> torch.Tensor:
        """KV slots ``[bs, max(B, N)]`` right after each request's prefix."""
        bs = len(batch.seq_lens)
        return assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            batch_size=bs,
            draft_token_num=self.config.window,
            device=self.device,
        ).view(bs, -1)

    def _limits(self, batch: Any) -> torch.Tensor:
        """Most drafts each request may accept, ``[bs]``."""
        limits = [0 if plain_reason(req) else self.config.max_depth for req in batch.reqs]
        return torch.tensor(limits, device=batch.seq_lens.device)

    def _commit(
        self, batch: Any, accepted: Any, verified: Any, window: torch.Tensor, prefix_lens: Any
    ) -> torch.Tensor:
        """Returns the accepted nodes' batch-wide rows ``[bs, D] int64``, -1 padded."""
        index = accepted.accept_index
        bs, depth = index.shape
        first = torch.arange(bs, device=index.device)[:, None] * self.config.budget
        rows = torch.where(index >= 0, index + first, index)
        commit.move_accepted(batch, rows, accepted.accept_lens)
        slots, positions = window[:, :depth], block_positions(prefix_lens, depth)
        if self.device == "cpu":
            kept = (index >= 0).view(-1)
            self._append_target_hidden_to_draft_kv_by_loc(
                target_hidden=verified.hidden[rows.view(-1)[kept]],
                cache_loc=slots.reshape(-1)[kept],
                positions=positions[kept],
            )
        else:  # fixed shapes, no host synchronisation: rows past the end are not written
            self._append_target_hidden_to_draft_kv_by_loc(
                target_hidden=verified.hidden[rows.clamp(min=0).view(-1)],
                cache_loc=slots.reshape(-1),
                cache_loc_2d=slots,
                positions=positions,
                commit_lens=accepted.accept_lens,
            )
        return rows

    def _result(self, accepted: Any, verified: Any, new_seq_lens: Any) -> GenerationBatchResult:
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
