"""Bookkeeping of KV slots: `req_to_token` int32 [R, pool_len] maps a position to its slot."""

import torch
from torch import Tensor

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
]


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """req_to_token[row, start:end] = the next end - start slots, request after request."""
    used = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[used : used + end - start]
        used += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The inverse gather into `out_cache_loc`, which may be longer than the spans together."""
    used = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[used : used + end - start] = req_to_token[row, start:end]
        used += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Gather the topk * num_steps slots after each request's sequence."""
    width = topk * num_steps
    ends = seq_lens + width
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """int32 [B * topk, pool_len]: the prefix's slots, the candidate's num_steps slots, then zeros.

    Candidate c of request b is row b * topk + c.
    """
    table = req_to_token.new_zeros(req_pool_indices.numel() * topk, pool_len)
    for b, (row, seq_len) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        draft_slots = req_to_token[row, seq_len : seq_len + topk * num_steps]
        rows = table[b * topk : (b + 1) * topk]
        rows[:, :seq_len] = req_to_token[row, :seq_len]
        rows[:, seq_len : seq_len + num_steps] = draft_slots.view(topk, num_steps)
    return table


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """bonus_tokens[b] = accept_tokens[b * accept_stride + accept_lens[b] - 1]."""
    count = accept_lens.numel()
    firsts = torch.arange(count, device=accept_lens.device) * accept_stride
    bonus_tokens[:count] = accept_tokens.flatten()[firsts + accept_lens.long() - 1].to(
        bonus_tokens.dtype
    )


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Write the slots of the accepted nodes (accept_index > -1) to the front of the output."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(
        accept_out_cache_loc.dtype
    )


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shift each request's ids left by one; write its new token last, or at select_index[b]."""
    tokens = topk_index.flatten().tolist()
    for b, (start, length) in enumerate(
        zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    ):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[b])
        input_ids[last] = tokens[b]


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
