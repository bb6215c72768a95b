"""Which requests are penalised for their output, and how often each token occurs in that output.

SGLang's penalty state counts one token a request and round. A round of GLANCE commits several, and
under overlap scheduling the host learns of them one round late. GLANCE therefore keeps counts of
its own on the device and never reads SGLang's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.speculative.glance.core.accept import Accepted
from sglang.srt.speculative.glance.core.penalties import (
    Penalties,
    count_tokens,
    forbid_stops,
    node_paths,
    penalise,
    shifts,
)
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.utils.common import async_h2d


def is_penalised(req: Any) -> bool:
    params = req.sampling_params
    return (
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
        or params.min_new_tokens > 0
    )


def penalised_rows(reqs: Sequence[Any]) -> list[int]:
    return [row for row, req in enumerate(reqs) if is_penalised(req)]


def stop_ids(req: Any) -> list[int]:
    """The tokens that ``min_new_tokens`` rules out in plain decoding."""
    ids = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    ids |= {*(req.tokenizer.additional_stop_token_ids or ()), req.tokenizer.eos_token_id}
    return sorted(ids - {None})


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """``[len(rows), longest] int64``, -1 past a row's end."""
    out = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for into, row in zip(out, rows, strict=True):
        into[: len(row)] = row
    return out


def penalties_of(reqs: Sequence[Any], device: torch.device) -> Penalties:
    asked = [req.sampling_params for req in reqs]
    stops = [stop_ids(req) if req.sampling_params.min_new_tokens > 0 else [] for req in reqs]
    least = [p.min_new_tokens if ids else 0 for p, ids in zip(asked, stops, strict=True)]
    table = padded([ids or [0] for ids in stops])
    table = np.where(table >= 0, table, table[:, :1])

    def column(values: list[float]) -> torch.Tensor:
        return async_h2d(values, dtype=torch.float32, device=device)

    return Penalties(
        frequency=column([p.frequency_penalty for p in asked]),
        presence=column([p.presence_penalty for p in asked]),
        repetition=column([p.repetition_penalty for p in asked]),
        min_new_tokens=async_h2d(least, dtype=torch.int64, device=device),
        stop_ids=async_h2d(table, dtype=torch.int64, device=device),
    )


class OutputCounts:
    """How often each penalised request has put out each token before the root of the tree at hand.

    Kept on the device from round to round: the host knows the output too, but under overlap
    scheduling hears of a round only after the next one has started. A prefill starts a request's
    row anew from what the host knows then: nothing for a new request, and for one that was
    retracted all its output. What a round committed that the host never kept (the request was
    retracted or had ended) is forgotten thereby.

    ``table [rows of the request table, V] float32``, made when a request first asks for it:
    4 bytes * V a running request (30 MB for 48 requests of 152 k tokens). ``max_depth``: of a node.
    """

    def __init__(self, num_rows: int, vocab: int, max_depth: int, device: torch.device) -> None:
        self.shape, self.max_depth, self.device = (num_rows, vocab), max_depth, device
        self.table: torch.Tensor | None = None

    def start(self, rows: torch.Tensor, counts: torch.Tensor) -> None:
        """``rows [P]`` of the request table begin with ``counts [P, V]``."""
        if self.table is None:
            self.table = torch.zeros(self.shape, dtype=torch.float32, device=self.device)
        self.table[rows] = counts

    def note(self, batch: Any, tree: Tree, accepted: Accepted) -> None:
        """Count what now stands before the next root: the path that was accepted."""
        rows = penalised_rows(batch.reqs)
        if not rows:
            return
        index = async_h2d(rows, dtype=torch.int64, device=self.device)
        path = accepted.accept_index[index]
        tokens = tree.tokens[index].gather(1, path.clamp(min=0))
        places = batch.req_pool_indices[index, None] * self.shape[1] + tokens
        self.table.view(-1).scatter_add_(0, places.view(-1), (path >= 0).float().view(-1))


def penalise_nodes(
    logits: torch.Tensor, batch: Any, tree: Tree, positions: torch.Tensor, counts: OutputCounts
) -> None:
    """Apply in place to ``logits [bs, N, V]`` each request's penalties along each node's path.

    ``positions [bs, N]``: each node's token index, prompt included.
    """
    rows = penalised_rows(batch.reqs)
    if not rows:
        return
    device = logits.device
    reqs = [batch.reqs[row] for row in rows]
    index = async_h2d(rows, dtype=torch.int64, device=device)
    prompt_lens = [len(req.origin_input_ids) for req in reqs]
    prompt_lens = async_h2d(prompt_lens, dtype=torch.int64, device=device)
    num_before = positions[index] - prompt_lens[:, None]  # of each node, itself not counted
    penalties = penalties_of(reqs, device)
    paths = node_paths(tree.tokens[index], tree.parents[index], counts.max_depth)
    chosen = logits[index]
    penalise(chosen, paths, counts.table[batch.req_pool_indices[index]], penalties)
    forbid_stops(chosen, num_before + 1, penalties)
    logits[index] = chosen


def begin(batch: Any, counts: OutputCounts) -> None:
    """Before a prefill: count the output that its penalised requests have already, and give those
    that were retracted the penalties of it, since the host starts theirs anew.
    ``batch.sampling_info`` is the forward pass's own copy."""
    rows = penalised_rows(batch.reqs)
    if not rows:
        return
    device, reqs = counts.device, [batch.reqs[row] for row in rows]
    index = async_h2d(rows, dtype=torch.int64, device=device)
    outputs = padded([req.output_ids for req in reqs])
    before = count_tokens(async_h2d(outputs, dtype=torch.int64, device=device), counts.shape[1])
    counts.start(batch.req_pool_indices[index], before)
    again = [place for place, req in enumerate(reqs) if len(req.output_ids)]
    if again:
        picked = async_h2d(again, dtype=torch.int64, device=device)
        _resume(batch, index[picked], [reqs[place] for place in again], before[picked])


def _resume(batch: Any, index: torch.Tensor, reqs: Sequence[Any], before: torch.Tensor) -> None:
    """``before [P, V]``: counts of the output of ``reqs``, which are rows ``index [P]``."""
    info, penalties = batch.sampling_info, penalties_of(reqs, before.device)
    own_added, own_scale = shifts(before, penalties)
    lens = [[len(req.output_ids)] for req in reqs]
    lens = async_h2d(lens, dtype=torch.int64, device=before.device)
    forbid_stops(own_added[:, None], lens, penalties)
    added, scale = info.acc_additive_penalties.clone(), info.acc_scaling_penalties
    added[index] = own_added
    scale = torch.ones_like(added) if scale is None else scale.clone()
    scale[index] = own_scale
    batch.sampling_info = dataclasses.replace(
        info, acc_additive_penalties=added, acc_scaling_penalties=scale
    )
