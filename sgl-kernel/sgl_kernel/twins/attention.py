"""Attention over the paged cache and over packed sequences.

T query rows, H query heads, KH KV heads, D head size, Dv value size; cache buffers are
[slots, KH, D].
"""

import torch
from torch import Tensor

from sgl_kernel.twins.cache import store_cache_cpu

__all__ = ["decode_attention_cpu", "extend_attention_cpu", "flash_attn_varlen_func"]


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Request b's one query attends to its seq_lens[b] cached keys.

    k and v, if given, are first written to the slots `loc`.
    """
    _refuse_encoder(is_cross_attn, encoder_lens)
    if k is not None and v is not None:
        store_cache_cpu(k, v, k_buffer, v_buffer, loc, k_buffer.size(1) * k_buffer.size(2))
    for b, (row, seq_len) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        first = max(0, seq_len - sliding_window) if sliding_window > 0 else 0
        slots = req_to_token[row, first:seq_len].long()
        o[b : b + 1] = _attend(
            q[b : b + 1], k_buffer[slots], v_buffer[slots], sm_scale, logit_cap, sinks, None
        )


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_extend_len: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Request b's queries are the last extend_seq_lens[b] of its seq_lens[b] tokens.

    The caller has cached the K/V of all these tokens. tree_mask: bool, flat, one E x E block after
    another, E being the request's extend_seq_lens; every query sees the whole prefix.
    """
    _refuse_encoder(is_cross_attn, encoder_lens)
    mask_used = 0
    for row, seq_len, num_new, start in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    ):
        tree = None
        if tree_mask is not None:
            tree = tree_mask.flatten()[mask_used : mask_used + num_new * num_new]
            tree = tree.view(num_new, num_new)
            mask_used += num_new * num_new
        slots = req_to_token[row, :seq_len].long()
        rows = slice(start, start + num_new)
        visible = _visible(seq_len, num_new, tree, is_causal, sliding_window, q.device)
        o[rows] = _attend(
            q[rows], k_buffer[slots], v_buffer[slots], sm_scale, logit_cap, sinks, visible
        )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """q [T, H, D], k [S, KH, D], v [S, KH, Dv] -> [T, H, Dv].

    Sequence b holds the rows from cu_seqlens[b] to cu_seqlens[b + 1].
    """
    o = q.new_empty(q.size(0), q.size(1), v.size(2))
    q_ends, k_ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(q_ends) - 1):
        rows = slice(q_ends[b], q_ends[b + 1])
        keys = slice(k_ends[b], k_ends[b + 1])
        visible = None
        if causal:
            num_keys, num_rows = keys.stop - keys.start, rows.stop - rows.start
            visible = _visible(num_keys, num_rows, None, True, 0, q.device)
        o[rows] = _attend(q[rows], k[keys], v[keys], q.size(2) ** -0.5, 0.0, None, visible)
    return o


def _visible(
    seq_len: int,
    num_new: int,
    tree: Tensor | None,
    is_causal: bool,
    sliding_window: int,
    device: torch.device,
) -> Tensor:
    """Which of seq_len keys each of the last num_new tokens sees: bool [num_new, seq_len].

    The window counts only keys that a query can see. Siblings lie between a tree node and its
    ancestors, yet the node sees the same keys as in plain decoding of its path.
    """
    position = torch.arange(seq_len, device=device)
    query = position[seq_len - num_new :, None]
    visible = torch.ones(num_new, seq_len, dtype=torch.bool, device=device)
    if tree is not None:
        visible[:, seq_len - num_new :] = tree
    elif is_causal:
        visible = position[None] <= query
    elif sliding_window > 0:
        return position[None] > query - sliding_window
    if sliding_window > 0:
        visible_from_key = visible.flip(1).cumsum(1).flip(1)
        visible = visible & (visible_from_key <= sliding_window)
    return visible


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sm_scale: float,
    logit_cap: float,
    sinks: Tensor | None,
    visible: Tensor | None,
) -> Tensor:
    """q [T, H, D], k [L, KH, D], v [L, KH, Dv], visible bool [T, L] -> [T, H, Dv] in q's dtype."""
    num_rows, num_heads, _ = q.shape
    num_kv_heads = k.size(1)
    groups = q.float().unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
    scores = torch.einsum("tkgd,lkd->kgtl", groups, k.float()) * sm_scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(num_kv_heads, -1, 1, 1).expand(-1, -1, num_rows, 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = torch.einsum("kgtl,lkd->tkgd", weights, v.float())
    return out.flatten(1, 2).to(q.dtype)


def _refuse_encoder(is_cross_attn: bool, encoder_lens: Tensor | None) -> None:
    if is_cross_attn or encoder_lens is not None:
        raise NotImplementedError(
            "cross attention is not supported: got an encoder-decoder model, expected a decoder"
        )
