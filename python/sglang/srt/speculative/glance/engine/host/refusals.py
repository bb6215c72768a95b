"""Requests that GLANCE answers with HTTP 400 and a reason: the hooks, and what they ask.

Of the exceptions that SGLang raises over a request, only those that the client's own data causes
become a reason: a path or address that the request names, a picture's size, a pattern. A full disk,
a lack of memory and a bug (TypeError, LookupError, AttributeError) stay what they are.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlparse

import requests
from PIL import Image
from sglang.srt.runtime_context import get_exec
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


def refuse_request(original: Callable, req: Any, enable_overlap: bool) -> str | None:
    """Reason why a request cannot be served (HTTP 400), or None."""
    if req.return_hidden_states:
        return "return_hidden_states is not supported with GLANCE: drop it from the request"
    return (
        ends_the_server(req)
        or cannot_be_sampled(req)
        or scores_several_places(req)
        or original(req, enable_overlap)
    )


def masks_are_kept(original: Callable, req: Any, spec_algorithm: Any) -> None:
    """No reason to refuse a request's sampling mask: the host's sampler draws every node's token,
    and has its support."""


async def refuse_on_a_cpu(original: Callable, manager: Any, *request: Any) -> None:
    """Raises ValueError, which becomes HTTP 400, where the host's scheduler would end."""
    if manager.server_args.device == "cpu":
        raise ValueError(
            "a server on a CPU has no device memory to release or resume: stop it to free its "
            "memory"
        )
    await original(manager, *request)


def refuse_at_the_door(original: Callable, manager: Any, obj: Any, input_ids: Any) -> None:
    """What the scheduler is told too late to refuse. Raises ValueError, which becomes HTTP 400."""
    original(manager, obj, input_ids)
    if hasattr(obj, "top_logprobs_num"):
        reason = logprobs_out_of_range(obj, manager.model_config.vocab_size)
        if reason is not None:
            raise ValueError(reason)


async def unreadable_is_refused(original: Callable, manager: Any, obj: Any) -> Any:
    """Raises ValueError, which becomes HTTP 400 with its message, for what the host would answer
    with a bare HTTP 500."""
    reason, cause = wrong_shape(obj), None
    if reason is None:
        try:
            return await original(manager, obj)
        except (OSError, re.error, Image.DecompressionBombError) as error:
            if not of_the_client(error, obj):
                raise
            reason, cause = f"{type(error).__name__}: {error!s:.300}", error
    raise ValueError(f"the request cannot be read: {reason}") from cause


# Errors of a path. Any other, a full or a failing disk, is the machine's.
_OF_A_PATH = (
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)


def of_the_client(error: Exception, obj: Any) -> bool:
    """Whether the client's own data causes an error. ``obj``: the request as it came, one prompt.

    An address that cannot be fetched, a picture that is too large and a bad pattern are the
    client's. A file that cannot be opened is, where the request names the file.
    """
    if not isinstance(error, OSError) or isinstance(error, requests.RequestException):
        return True
    return error.errno in _OF_A_PATH and error.filename in set(_paths(obj))


def wrong_shape(obj: Any) -> str | None:
    """Why a request's parameters or pictures are nothing that the host reads, or None."""
    params = getattr(obj, "sampling_params", None)
    if params is not None and not isinstance(params, Mapping):
        return f"sampling_params: got a {type(params).__name__}, expected an object"
    for item in _media(obj, "image_data") if obj.contains_mm_input() else ():
        if isinstance(item, list | Mapping):
            return (
                f"image_data: got a {type(item).__name__} for a picture, expected its path, its "
                "address or its data in base64"
            )
    return None


def _paths(obj: Any) -> Iterator[str]:
    """What the host takes for the path of a file, of all that a request names."""
    for item in _media(obj, "image_data", "video_data", "audio_data"):
        source = getattr(item, "url", item)
        if isinstance(source, str):
            local = source.startswith("file://")
            yield unquote(urlparse(source).path) if local else source


def _media(obj: Any, *fields: str) -> Iterator[Any]:
    """The sources of a request's media, out of the objects that the host takes them from."""
    for field in fields:
        given = getattr(obj, field, None)
        for item in given if isinstance(given, list) else [given]:
            if not isinstance(item, Mapping):
                yield item
            elif "format" not in item:  # else the output of a processor
                yield item.get("url", item.get("image", item))


def ends_the_server(req: Any) -> str | None:
    """Why this request would end the scheduler, with any algorithm or none, or None.

    SGLang accepts such a request, and the scheduler ends with all other requests. A request that is
    refused here still passes through the sampler once. The field that would fail in the sampler is
    therefore reset in the request.
    """
    if not req.origin_input_ids_unpadded:
        return "the prompt is empty: it must hold at least one token"
    # Not ``origin_input_ids``: in the earlier turns of a session these hold hashes, outside the
    # vocabulary, in the places of a picture.
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
    except (MemoryError, OSError):  # this machine's, whatever the client sent
        raise
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
