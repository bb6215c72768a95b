"""Which requests are penalised for their output, and what that output is when a tree is verified.

SGLang's own penalty state takes one token a request and round, so it misses what a longer run
commits, and under overlap scheduling what is not yet known to the host. It is not read here.
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


def send(rows: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """To the device without waiting for it."""
    out = torch.as_tensor(rows, dtype=dtype)
    return out.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else out


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
        return send(values, torch.float32, device)

    return Penalties(
        frequency=column([p.frequency_penalty for p in asked]),
        presence=column([p.presence_penalty for p in asked]),
        repetition=column([p.repetition_penalty for p in asked]),
        min_new_tokens=send(least, torch.int64, device),
        stop_ids=send(table, torch.int64, device),
    )


class OutputHistory:
    """What penalised requests have put out before the root of the tree at hand.

    The host knows it, but under overlap scheduling hears of a round only after the next one has
    started. ``recent [rows of the request table, D] int64`` holds what each request's last round
    committed, -1 padded.
    """

    def __init__(self, num_rows: int, depth: int, device: torch.device) -> None:
        self.recent = torch.full((num_rows, depth), -1, dtype=torch.int64, device=device)

    def note(self, batch: Any, accepted: Accepted) -> None:
        """Remember what this round committed, where a penalty will ask for it."""
        if penalised_rows(batch.reqs):
            self.recent[batch.req_pool_indices] = accepted.committed

    def before_root(
        self, reqs: Sequence[Any], pool_rows: torch.Tensor, num_outputs: torch.Tensor
    ) -> torch.Tensor:
        """The first ``num_outputs [P]`` output tokens of each request, ``[P, *] int64``, -1 for no
        token. ``pool_rows [P]``: the requests' rows of the request table."""
        device = self.recent.device
        known = send(padded([req.output_ids for req in reqs]), torch.int64, device)
        num_known = send([len(req.output_ids) for req in reqs], torch.int64, device)
        places = torch.arange(known.shape[1], device=device)
        known = known.masked_fill(places >= num_outputs[:, None], -1)
        recent = self.recent[pool_rows]
        places = torch.arange(recent.shape[1], device=device)
        recent = recent.masked_fill(places >= (num_outputs - num_known)[:, None], -1)
        return torch.cat([known, recent], dim=1)


def penalise_nodes(
    logits: torch.Tensor, batch: Any, tree: Tree, positions: torch.Tensor, history: OutputHistory
) -> None:
    """Apply in place to ``logits [bs, N, V]`` each request's penalties along each node's path.

    ``positions [bs, N]``: each node's token index, prompt included.
    """
    rows = penalised_rows(batch.reqs)
    if not rows:
        return
    device = logits.device
    reqs = [batch.reqs[row] for row in rows]
    index = send(rows, torch.int64, device)
    prompt_lens = send([len(req.origin_input_ids) for req in reqs], torch.int64, device)
    num_before = positions[index] - prompt_lens[:, None]  # of each node, itself not counted
    penalties = penalties_of(reqs, device)
    outputs = history.before_root(reqs, batch.req_pool_indices[index], num_before[:, 0])
    paths = node_paths(tree.tokens[index], tree.parents[index], history.recent.shape[1] - 1)
    chosen = logits[index]
    penalise(chosen, paths, count_tokens(outputs, logits.shape[-1]), penalties)
    forbid_stops(chosen, num_before + 1, penalties)
    logits[index] = chosen


def resume(batch: Any) -> None:
    """Give a prefill of requests that were retracted the penalties of their earlier output: the
    host starts theirs anew. ``batch.sampling_info`` is the forward pass's own copy."""
    again = [row for row in penalised_rows(batch.reqs) if len(batch.reqs[row].output_ids)]
    if not again:
        return
    info, reqs = batch.sampling_info, [batch.reqs[row] for row in again]
    device = info.temperatures.device
    index, penalties = send(again, torch.int64, device), penalties_of(reqs, device)
    outputs = send(padded([req.output_ids for req in reqs]), torch.int64, device)
    own_added, own_scale = shifts(count_tokens(outputs, info.vocab_size), penalties)
    lens = send([len(req.output_ids) for req in reqs], torch.int64, device)
    forbid_stops(own_added[:, None], lens[:, None], penalties)
    added, scale = info.acc_additive_penalties.clone(), info.acc_scaling_penalties
    added[index] = own_added
    scale = torch.ones_like(added) if scale is None else scale.clone()
    scale[index] = own_scale
    batch.sampling_info = dataclasses.replace(
        info, acc_additive_penalties=added, acc_scaling_penalties=scale
    )
