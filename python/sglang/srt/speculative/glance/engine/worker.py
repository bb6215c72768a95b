"""The worker: propose, verify, accept, commit."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.glance.core.accept import Accepted, shorten
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.host.stopping import watch_ends_of_grammars
from sglang.srt.speculative.glance.engine.round.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.round.sampling import keep_path_masks, plain_reason
from sglang.srt.speculative.glance.engine.round.verify import Verified
from sglang.srt.speculative.glance.engine.start.started import StartedWorker
from sglang.srt.utils.common import async_h2d


class GlanceWorker(StartedWorker):
    """GLANCE beside SGLang's scheduler: a round of all running requests."""

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
        budget = config.budget
        window = self.window.slots(batch.req_pool_indices, prefix_lens)

        marginals = self.drafter.propose(batch, roots, window[:, : config.block])
        self.rounds.lap("draft")
        tree = self.ops.build_tree(roots, marginals.ids, marginals.logprobs, budget)
        self.rounds.lap("tree")
        verified = self.verifier.verify(
            batch, tree, window[:, :budget], self.rounds, grammar_barrier
        )
        self.rounds.lap("verify")
        accepted, num_plain = self._accept(batch, tree, verified.target_tokens)
        new_seq_lens = prefix_lens + accepted.accept_lens
        if on_publish is not None:
            on_publish(new_seq_lens)
        self.verifier.counts.note(batch, tree, accepted)
        keep_path_masks(verified.output, batch.sampling_info, accepted, budget)
        self.rounds.lap("accept")
        rows = self.committer.commit(batch, accepted, verified.hidden, window)
        self.rounds.lap("commit")
        self.rounds.end(accepted.accept_lens, [req.rid for req in batch.reqs], num_plain)
        if batch.return_logprob:
            compute_spec_logprobs(
                batch, verified.output, verified.target_tokens.view(-1), accept_index=rows
            )
        return self._result(accepted, verified, new_seq_lens, budget)

    def _accept(self, batch: Any, tree: Tree, target_tokens: torch.Tensor) -> tuple[Accepted, int]:
        """What the round commits, and how many requests could take one token only."""
        accepted = self.ops.walk(tree.tokens, tree.parents, target_tokens, self.config.max_depth)
        limits = self.window.room(batch.seq_lens)
        reasons = [plain_reason(req) for req in batch.reqs]
        plain = [reason for reason in reasons if reason is not None]
        if plain:
            drafted = [reason is None for reason in reasons]
            limits = limits * async_h2d(drafted, dtype=torch.int64, device=limits.device)
            self.plain_rounds.count(plain)
            self.watch.exclude(len(plain))
            watch_ends_of_grammars(batch.reqs)
        return shorten(accepted, limits), len(plain)

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        """Called by the host once a round's lengths have reached it."""
        self.watch.note(num_correct_drafts_per_req)

    def _result(
        self, accepted: Accepted, verified: Verified, new_seq_lens: torch.Tensor, budget: int
    ) -> GenerationBatchResult:
        return GenerationBatchResult(
            logits_output=verified.output,
            next_token_ids=accepted.committed.view(-1),
            accept_lens=accepted.accept_lens.to(torch.int32),
            can_run_cuda_graph=verified.ran_graph,
            speculative_num_draft_tokens=budget,
            speculative_output_stride=accepted.committed.shape[1],
            next_draft_input=GlanceDraftInput.create(accepted.bonus, new_seq_lens),
            new_seq_lens=new_seq_lens,
            extra_keep_alive_refs=[verified.keep_alive],
        )
