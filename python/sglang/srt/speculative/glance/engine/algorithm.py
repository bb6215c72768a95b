"""The algorithm object that SGLang's scheduler and runners ask their questions."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo


class GlanceSpecAlgo(CustomSpecAlgo):
    """GLANCE as SGLang sees it: a draft half of the DFLASH family (head K/V from captured target
    states, its own pool on shared slots) and a tree verify that is not EAGLE's."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        # Asks whether drafting needs per-branch pages. The block shares the verify window's slots.
        return False

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def get_platform_worker_cls(self) -> type | None:
        return None

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def handle_server_args(self, server_args: Any) -> None:
        from sglang.srt.speculative.glance.engine.start.args import settle

        settle(server_args)

    def resolve_max_speculative_num_draft_tokens(self, server_args: Any) -> int | None:
        """Slots a round writes per request: the draft block and the tree share one window."""
        from sglang.srt.arg_groups.overrides import resolving_view

        args = resolving_view(server_args)
        if args.speculative_num_draft_tokens is None:
            return None
        return max(args.speculative_num_draft_tokens, args.speculative_dflash_block_size or 0)

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        if not is_draft_worker:
            return num_draft_tokens
        from sglang.srt.runtime_context import get_spec

        return get_spec().speculative_dflash_block_size
