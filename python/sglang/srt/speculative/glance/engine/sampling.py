"""One target token per tree node, drawn by SGLang's ordinary sampler."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


def plain_rounds(reqs: list[Any]) -> list[bool]:
    """Which requests must take one token a round.

    Penalties, ``min_new_tokens`` and custom logit processors read the whole output so far; along a
    branch that would be the branch's own tokens, which the host's batch-wide state does not hold.
    At the root it does, so such requests are decoded exactly from the root alone.
    """
    return [_reads_history(req) for req in reqs]


def _reads_history(req: Any) -> bool:
    params = req.sampling_params
    return (
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
        or params.min_new_tokens > 0
        or req.custom_logit_processor is not None
    )


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


def has_penalties(info: Any) -> bool:
    """Whether some request's logits depend on its output so far. The host hands a forward pass
    either the accumulated penalties or the object that accumulates them."""
    if info.acc_additive_penalties is not None or info.acc_scaling_penalties is not None:
        return True
    return info.penalizer_orchestrator is not None and info.penalizer_orchestrator.is_required


def bias_nodes(logits: torch.Tensor, info: Any, grammar_mask: Any, sampler: Any) -> None:
    """Apply in place to ``logits [bs, N, V]`` what plain decoding applies to its one row: the
    grammar mask and logit bias at every node; penalties and processors at the roots."""
    bs, width, vocab = logits.shape
    if grammar_mask is not None:
        grammar_mask.apply(logits.view(bs * width, vocab))
    needs_history = info.has_custom_logit_processor or has_penalties(info)
    if info.logit_bias is not None:
        first = 1 if needs_history else 0
        logits[:, first:] += info.logit_bias[:, None]
    if needs_history:
        roots = logits[:, 0].contiguous()
        info.grammar_mask = None  # applied above, for every node
        info.apply_logits_bias(roots)
        logits[:, 0] = sampler._preprocess_logits(roots, info)


def draw(
    logits_output: Any, info: Any, grammar_mask: Any, sampler: Any, positions: torch.Tensor
) -> torch.Tensor:
    """Target tokens ``[bs * N] int64`` from ``logits_output.next_token_logits [bs * N, V]``.

    ``positions [bs * N]``: each node's token index, which keys seeded sampling as in plain
    decoding. The logits are adjusted in place and otherwise kept for log-probabilities.
    """
    logits = logits_output.next_token_logits
    bs = len(info.temperatures)
    bias_nodes(logits.view(bs, -1, logits.shape[-1]), info, grammar_mask, sampler)
    if info.is_all_greedy:
        return torch.argmax(logits, dim=-1)
    scratch = dataclasses.replace(logits_output, next_token_logits=logits.clone())
    width = logits.shape[0] // bs
    return sampler(scratch, expand(info, width), False, [], [], positions).to(torch.int64)
