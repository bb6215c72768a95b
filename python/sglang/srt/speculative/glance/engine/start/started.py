"""What SGLang calls while a GLANCE server starts, and what of the worker is made then."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.glance.engine.host import seams
from sglang.srt.speculative.glance.engine.host.capture import install_capture
from sglang.srt.speculative.glance.engine.host.cpu_head import StackedContextKV, suit_head
from sglang.srt.speculative.glance.engine.host.stopping import takes_no_token
from sglang.srt.speculative.glance.engine.host.weights import HeadUpdater
from sglang.srt.speculative.glance.engine.observe.metrics import PlainRounds
from sglang.srt.speculative.glance.engine.observe.round_log import RoundLog
from sglang.srt.speculative.glance.engine.observe.watch import AcceptWatch
from sglang.srt.speculative.glance.engine.round import commit
from sglang.srt.speculative.glance.engine.round.draft import BlockDrafter
from sglang.srt.speculative.glance.engine.round.graphs import GraphMarginals, use_verify_graphs
from sglang.srt.speculative.glance.engine.round.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.round.verify import TreeVerifier
from sglang.srt.speculative.glance.engine.round.window import Window, widen
from sglang.srt.speculative.glance.engine.start.models import load_config, read_models
from sglang.srt.speculative.glance.head_config import (
    LayerAttention,
    describe_layers,
    layer_attention,
)
from sglang.srt.speculative.glance.kernels.select import ops_for, warm
from sglang.srt.speculative.glance.refusal import Unavailable


def check_built(draft_model: Any, expected: list[LayerAttention]) -> None:
    """SGLang's layers attend as the start-up line says. Its window counts the tokens before."""
    attentions = [layer.self_attn for layer in draft_model.layers]
    built = [
        LayerAttention(
            None if a.sliding_window_size < 0 else a.sliding_window_size + 1,
            a.attn_type == AttentionType.DECODER,
        )
        for a in attentions
    ]
    if built != expected:
        raise Unavailable(
            f"SGLang built a head of {describe_layers(built)}, expected "
            f"{describe_layers(expected)} from its config.json"
        )


class StartedWorker(DFlashWorkerV2):
    """From DFLASH's worker come the draft runner, the pools and the prefill half, which writes the
    head's K/V for every prompt token before it returns."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        seams.require()
        args = resolving_view(server_args)
        models = read_models(args)
        self.config = load_config(args, models)
        install_capture(target_worker.model_runner.model)
        use_verify_graphs(target_worker.model_runner)
        with self._draft_leaves():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        check_built(self.draft_model, layer_attention(models.head))
        self.speculative_num_draft_tokens = self.config.budget
        on_cpu = self.device == "cpu"
        if on_cpu:
            suit_head(self.draft_model)
        Req.is_prefill_only = property(takes_no_token)  # no hook replaces a property
        self.context_kv = self._context_kv()
        runner = self.draft_model_runner
        runner.weight_updater = HeadUpdater(runner.weight_updater, self._head_changed)
        committer = commit.RowCommitter if on_cpu else commit.FixedShapeCommitter
        self.committer = committer(self._append_target_hidden_to_draft_kv_by_loc)
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
