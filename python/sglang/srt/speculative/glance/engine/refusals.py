"""Requests that GLANCE answers with HTTP 400 and a reason."""

from __future__ import annotations

from typing import Any


def ends_the_server(req: Any) -> str | None:
    """Why this request would end the scheduler, with any algorithm or none, or None.

    The host lets these through; one of them takes every other request down with it. A refused
    request still passes through the sampler once, so what would fail there is taken out of it.
    """
    if not req.origin_input_ids:
        return "the prompt is empty: it must hold at least one token"
    params = req.sampling_params
    if params.min_new_tokens > 0:
        outside = [i for i in params.stop_token_ids or () if not 0 <= i < req.vocab_size]
        if outside:
            params.min_new_tokens = 0
            return (
                f"stop_token_ids with min_new_tokens: got {outside[0]}, expected ids in "
                f"[0, {req.vocab_size - 1}]"
            )
    return None
