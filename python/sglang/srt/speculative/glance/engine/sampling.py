"""One target token per tree node, drawn by SGLang's ordinary sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.penalties import OutputCounts, penalise_nodes

PLAIN_REASONS = ("custom_logit_processor", "grammar_ignoring_eos")


def plain_reason(req: Any) -> str | None:
    """Why a request must take one token a round, one of ``PLAIN_REASONS``, or None.

    A custom logit processor may read the request's output and keep state of its own: called for
    nodes that are not accepted in the end, it would not see what it sees in plain decoding. At the
    root it does, so such requests are decoded exactly from the root alone.

    A grammar ends by EOS. Where EOS is to be ignored, plain decoding goes on behind it, but the
    host cuts an accepted run there.
    """
    if req.custom_logit_processor is not None:
        return "custom_logit_processor"
    if req.grammar is not None and req.sampling_params.ignore_eos:
        return "grammar_ignoring_eos"
    return None


def expand(info: Any, width: int) -> Any:
    """A ``SamplingBatchInfo`` with every request's row repeated ``width`` times, and without what
    was already applied to the logits."""

    def rows(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x.repeat_interleave(width, dim=0)

    return dataclasses.replace(
        info,
        temperatures=rows(info.temperatures),
        top_ps=rows(info.top_ps),
        top_ks=rows(info.top_ks),
        min_ps=rows(info.min_ps),
        sampling_seed=rows(info.sampling_seed),
        grammars=None,
        grammar_mask=None,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=None,
        has_custom_logit_processor=False,
        custom_logit_processor=None,
    )


def adjust(
    logits: torch.Tensor,
    batch: Any,
    tree: Tree,
    positions: torch.Tensor,
    counts: OutputCounts,
    grammar_mask: Any,
    sampler: Any,
) -> None:
    """Apply in place to ``logits [bs, N, V]``, in its order, what plain decoding applies to its one
    row: penalties, grammar mask and logit bias at every node, custom processors at the roots."""
    info = batch.sampling_info
    penalise_nodes(logits, batch, tree, positions, counts)
    if grammar_mask is not None:
        grammar_mask.apply(logits.flatten(0, 1))
    if info.logit_bias is not None:
        logits += info.logit_bias[:, None]
    if info.has_custom_logit_processor:
        logits[:, 0] = sampler._preprocess_logits(logits[:, 0].contiguous(), info)


def draw(
    output: Any,
    batch: Any,
    tree: Tree,
    positions: torch.Tensor,
    counts: OutputCounts,
    grammar_mask: Any,
    sampler: Any,
) -> torch.Tensor:
    """Target tokens ``[bs, N] int64`` from ``output.next_token_logits [bs * N, V]``.

    ``positions [bs * N]``: each node's token index, which keys seeded sampling as in plain
    decoding. The logits are adjusted in place and otherwise kept for log-probabilities.
    """
    logits, info, (bs, width) = output.next_token_logits, batch.sampling_info, tree.tokens.shape
    nodes = logits.view(bs, width, -1)
    adjust(nodes, batch, tree, positions.view(bs, width), counts, grammar_mask, sampler)
    scratch = logits if info.is_all_greedy else logits.clone()  # the sampler overwrites it
    scratch = dataclasses.replace(output, next_token_logits=scratch)
    tokens = sampler(scratch, expand(info, width), False, [], [], positions)
    return tokens.view(bs, width).to(torch.int64)
