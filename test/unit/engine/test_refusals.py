"""Requests that would end the scheduler, and the reason each is refused with."""

from __future__ import annotations

import asyncio
import errno
import re
from types import SimpleNamespace

import pytest
import requests
from PIL import Image, UnidentifiedImageError
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.engine.host.adjustments import unreadable_is_refused
from sglang.srt.speculative.glance.engine.host.refusals import (
    ends_the_server,
    logprobs_out_of_range,
    scores_several_places,
)


def request(
    ids: list[int] | None = None, processor: str | None = None, **params: object
) -> SimpleNamespace:
    return SimpleNamespace(
        origin_input_ids_unpadded=[1] if ids is None else ids,
        sampling_params=SamplingParams(**params),
        vocab_size=512,
        custom_logit_processor=processor,
        input_embeds=None,
    )


@pytest.mark.parametrize(
    "params", [{}, {"min_new_tokens": 3}, {"min_new_tokens": 3, "stop_token_ids": {0, 511}}]
)
def test_ordinary_requests_pass(params: dict) -> None:
    assert ends_the_server(request(**params)) is None


def test_empty_prompt() -> None:
    assert "prompt is empty" in ends_the_server(request([]))


def test_embeddings() -> None:
    refused = request()
    refused.input_embeds = [[0.0, 1.0]]
    assert "input_embeds is not supported" in ends_the_server(refused)
    assert refused.input_embeds is None


@pytest.mark.parametrize("token", [512, -1, 2**31])
def test_prompt_token_outside_the_vocabulary(token: int) -> None:
    refused = ends_the_server(request([0, token, 511]))
    assert f"input_ids: got {token}, expected ids in [0, 511]" in refused


@pytest.mark.parametrize("token", [512, -1, 10**9])
def test_stop_token_outside_the_vocabulary(token: int) -> None:
    assert ends_the_server(request(stop_token_ids={5, token})) is None  # it matches nothing
    refused = request(stop_token_ids={5, token}, min_new_tokens=2)
    assert f"got {token}, expected ids in [0, 511]" in ends_the_server(refused)
    assert refused.sampling_params.min_new_tokens == 0


@pytest.mark.parametrize(
    "text", ["not a processor", "{}", '{"callable": "00"}', '{"callable": "8004954b072e"}', "[]"]
)
def test_processor_that_cannot_be_read(text: str) -> None:
    refused = request(processor=text)
    assert "custom_logit_processor: expected what to_str() gives" in ends_the_server(refused)
    assert refused.custom_logit_processor is None


def test_readable_processor_passes() -> None:
    text = DisallowedTokensLogitsProcessor.to_str()
    assert ends_the_server(request(processor=text)) is None


@pytest.mark.parametrize("field", ["token_indices_to_pool", "multi_item_delimiter_indices"])
def test_places_of_a_prompt_are_not_scored(field: str) -> None:
    fields = {"token_indices_to_pool": None, "multi_item_delimiter_indices": None}
    assert scores_several_places(SimpleNamespace(**fields)) is None
    refused = SimpleNamespace(**{**fields, field: [3]})
    assert field in scores_several_places(refused)
    assert getattr(refused, field) is None


def asked(start: int = -1, top: int = 0, ids: list | None = None) -> SimpleNamespace:
    return SimpleNamespace(logprob_start_len=start, top_logprobs_num=top, token_ids_logprob=ids)


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (asked(start=-2), "logprob_start_len: got -2"),
        (asked(top=-1), "top_logprobs_num: got -1"),
        (asked(top=513), "top_logprobs_num: got 513, expected 0 to 512"),
        (asked(ids=[3, 512]), "token_ids_logprob: got 512, expected ids in [0, 511]"),
        (asked(ids=[-1]), "token_ids_logprob: got -1"),
    ],
)
def test_logprobs_out_of_range(obj: SimpleNamespace, reason: str) -> None:
    assert reason in logprobs_out_of_range(obj, 512)


@pytest.mark.parametrize("obj", [asked(), asked(start=0, top=512, ids=[0, 511]), asked(top=None)])
def test_logprobs_in_range(obj: SimpleNamespace) -> None:
    assert logprobs_out_of_range(obj, 512) is None


async def reads(manager: object, obj: object) -> str:
    if isinstance(obj, BaseException):
        raise obj
    return "tokens"


def read(algorithm: str | None, obj: object) -> str:
    args = SimpleNamespace(speculative_algorithm=algorithm)
    return asyncio.run(unreadable_is_refused(reads, SimpleNamespace(server_args=args), obj))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such file", "x.png"),
        PermissionError(errno.EACCES, "not allowed", "/etc/shadow"),
        IsADirectoryError(errno.EISDIR, "a folder", "/tmp"),
        OSError(errno.ENAMETOOLONG, "name too long", "x" * 300),
        UnidentifiedImageError("cannot identify image file"),
        OSError("image file is truncated"),
        requests.ConnectionError("no such host"),
        Image.DecompressionBombError("too many pixels"),
        re.error("unterminated group"),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'errno', None)}",
)
def test_what_a_request_names_and_cannot_be_read_is_refused(error: Exception) -> None:
    with pytest.raises(ValueError, match=f"cannot be read: {type(error).__name__}: "):
        read("GLANCE", error)
    with pytest.raises(type(error)) as plain:  # a server of another algorithm answers as it does
        read(None, error)
    assert plain.value is error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "no space left on device"),
        OSError(errno.EMFILE, "too many open files"),
        OSError(errno.EIO, "input/output error"),
        ConnectionResetError(errno.ECONNRESET, "reset by peer"),
        MemoryError(),
        TypeError("a bug"),
        AttributeError("a bug"),
        KeyError("a bug"),
        IndexError("a bug"),
        RuntimeError("a bug"),
        AssertionError("a bug"),
        ValueError("too long"),  # SGLang's own refusal, in its own words
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'errno', None)}",
)
def test_a_fault_of_the_machine_or_a_bug_stays_what_it_is(error: Exception) -> None:
    for algorithm in ("GLANCE", None):
        with pytest.raises(type(error)) as raised:
            read(algorithm, error)
        assert raised.value is error


def test_a_request_that_can_be_read_is_read() -> None:
    assert read("GLANCE", "request") == "tokens"
