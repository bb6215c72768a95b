"""One target token per tree node, drawn by SGLang's ordinary sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sglang.srt.speculative.glance.core.accept import Accepted
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.round.penalties import OutputCounts, penalise_nodes


def plain_reason(req: Any) -> str | None:
    """Why a request must take one token a round, one of ``metrics.PLAIN_REASONS``, or None.

    A custom logit processor may read the request's output and keep state. In plain decoding the
    processor is called once a token. A tree would call the processor for nodes that are rejected
    later. Such a request takes the root's token alone, for which the call is the same.

    A grammar ends with EOS. With ``ignore_eos`` plain decoding goes on after EOS, while SGLang cuts
    an accepted run at EOS.
    """
    if req.custom_logit_processor is not None:
        return "custom_logit_processor"
    if req.grammar is not None and req.sampling_params.ignore_eos:
        return "grammar_ignoring_eos"
    return None


def node_rows(requests: torch.Tensor, width: int) -> torch.Tensor:
    """Batch-wide rows ``[n, width]`` of all nodes of the ``requests [n] int64``."""
    return requests[:, None] * width + torch.arange(width, device=requests.device)


def expand(info: Any, width: int) -> Any:
    """A ``SamplingBatchInfo`` with every request's row repeated ``width`` times, and without what
    was already applied to the logits."""

    def rows(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x.repeat_interleave(width, dim=0)

    def nodes(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else node_rows(x, width).view(-1)

    return dataclasses.replace(
        info,
        temperatures=rows(info.temperatures),
        top_ps=rows(info.top_ps),
        top_ks=rows(info.top_ks),
        min_ps=rows(info.min_ps),
        sampling_seed=rows(info.sampling_seed),
        sampling_mask_batch_indices=nodes(info.sampling_mask_batch_indices),
        sampling_support_logprobs_capture_indices=nodes(
            info.sampling_support_logprobs_capture_indices
        ),
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
    decoding. The logits are adjusted in place and otherwise kept for log-probabilities. Where a
    request wants its sampling mask, ``output.sampling_mask_output`` has a row for each node of it.
    """
    logits, info, (bs, width) = output.next_token_logits, batch.sampling_info, tree.tokens.shape
    nodes = logits.view(bs, width, -1)
    adjust(nodes, batch, tree, positions.view(bs, width), counts, grammar_mask, sampler)
    scratch = logits if info.is_all_greedy else logits.clone()  # the sampler overwrites it
    scratch = dataclasses.replace(output, next_token_logits=scratch)
    tokens = sampler(scratch, expand(info, width), False, [], [], positions)
    output.sampling_mask_output = scratch.sampling_mask_output
    return tokens.view(bs, width).to(torch.int64)


def keep_path_masks(output: Any, info: Any, accepted: Accepted, width: int) -> None:
    """Of the sampling masks of every node, ``[n * N, ...]`` for ``n`` requests that want theirs,
    keep those along the accepted paths, ``[n, D, ...]``: so the host reads a speculative round."""
    masks, asked = output.sampling_mask_output, info.sampling_mask_batch_indices
    if masks is None:
        return
    path = accepted.accept_index[asked].clamp(min=0)  # rows past accept_lens are not read

    def along(x: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
        requests = torch.arange(len(path), device=path.device)[:, None]
        return x.unflatten(0, (len(path), width))[requests, path]

    support = masks.support_logprobs
    if support is not None:
        support = along(support, path[info.sampling_support_logprobs_capture_indices])
    output.sampling_mask_output = dataclasses.replace(
        masks,
        token_ids=along(masks.token_ids, path),
        lengths=along(masks.lengths, path),
        selected_logprobs=along(masks.selected_logprobs, path),
        support_logprobs=support,
        statuses=along(masks.statuses, path),
        num_accept_tokens=accepted.accept_lens[asked],
    )
