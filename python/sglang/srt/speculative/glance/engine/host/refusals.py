"""Requests that GLANCE answers with HTTP 400 and a reason."""

from __future__ import annotations

import errno
from typing import Any

from sglang.srt.runtime_context import get_exec
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

# What opening a path of the request's choice may end in. Any other number is the machine's own
# trouble, a full disk or too many open files among them.
_OF_A_PATH = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
}


def is_of_the_request(error: Exception) -> bool:
    """Whether ``error``, raised while a request was read, is about the request's data. Decoders and
    HTTP clients raise an OSError without a number."""
    return not isinstance(error, OSError) or error.errno is None or error.errno in _OF_A_PATH


def ends_the_server(req: Any) -> str | None:
    """Why this request would end the scheduler, with any algorithm or none, or None.

    The host lets these through; one of them takes every other request down with it. A refused
    request still passes through the sampler once, so what would fail there is taken out of it.
    """
    if not req.origin_input_ids_unpadded:
        return "the prompt is empty: it must hold at least one token"
    # A picture's places are filled in later, but in the earlier turns of a session.
    tokens = req.origin_input_ids_unpadded
    lowest, highest = min(tokens), max(tokens)
    if lowest < 0 or highest >= req.vocab_size:
        got = lowest if lowest < 0 else highest
        return f"input_ids: got {got}, expected ids in [0, {req.vocab_size - 1}]"
    if req.input_embeds is not None:
        req.input_embeds = None
        return "input_embeds is not supported by this model: send text or input_ids"
    params = req.sampling_params
    if params.min_new_tokens > 0:
        outside = [i for i in params.stop_token_ids or () if not 0 <= i < req.vocab_size]
        if outside:
            params.min_new_tokens = 0
            return (
                f"stop_token_ids with min_new_tokens: got {outside[0]}, expected ids in "
                f"[0, {req.vocab_size - 1}]"
            )
    return _unreadable_processor(req)


def _unreadable_processor(req: Any) -> str | None:
    if req.custom_logit_processor is None:
        return None
    try:
        CustomLogitProcessor.from_str(req.custom_logit_processor)
    except Exception as error:  # noqa: BLE001 - a pickle can raise anything
        req.custom_logit_processor = None
        return f"custom_logit_processor: expected what to_str() gives, got {error!r:.200}"
    return None


def cannot_be_sampled(req: Any) -> str | None:
    """Why the sampler cannot give this request what it asks for, or None."""
    if req.sampling_params.min_p > 0 and get_exec().deterministic.enable_deterministic_inference:
        # The sampler asserts that there is no seed, plain or not: it would end the scheduler.
        req.sampling_params.min_p = 0.0
        return "min_p is not supported with --enable-deterministic-inference: drop it"
    return None


def scores_several_places(req: Any) -> str | None:
    """Why this request cannot be scored, or None. The host scores places of one prompt from their
    logits alone, and drops the tapped states that the head's K/V are made of."""
    for field in ("token_indices_to_pool", "multi_item_delimiter_indices"):
        if getattr(req, field) is not None:
            setattr(req, field, None)
            return f"{field} is not supported with GLANCE: score one place of a prompt a request"
    return None


def logprobs_out_of_range(obj: Any, vocab_size: int) -> str | None:
    """Why what a request wants to know of log-probabilities would end the scheduler, or None.
    ``obj``: the request as it came, one prompt."""
    start, top, ids = obj.logprob_start_len, obj.top_logprobs_num, obj.token_ids_logprob
    if isinstance(start, int) and start < -1:
        return f"logprob_start_len: got {start}, expected -1 or a place in the prompt"
    if isinstance(top, int) and not 0 <= top <= vocab_size:
        return f"top_logprobs_num: got {top}, expected 0 to {vocab_size}"
    for token in ids if isinstance(ids, list) else ():
        if isinstance(token, int) and not 0 <= token < vocab_size:
            return f"token_ids_logprob: got {token}, expected ids in [0, {vocab_size - 1}]"
    return None
