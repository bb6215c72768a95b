"""Requests that would end the scheduler, and the reason each is refused with."""

from __future__ import annotations

import asyncio
import errno
import re
from types import SimpleNamespace

import pytest
import requests
from PIL import Image
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.custom_logit_processor import (
    CustomLogitProcessor,
    DisallowedTokensLogitsProcessor,
)
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.engine.host.refusals import (
    ends_the_server,
    logprobs_out_of_range,
    scores_several_places,
    unreadable_is_refused,
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


def one_request(**fields: object) -> GenerateReqInput:
    return GenerateReqInput(text="Read.", sampling_params={"temperature": 0}, **fields)


def read(obj: GenerateReqInput, error: Exception | None = None) -> str:
    """Through the hook, from a host that raises ``error`` over the request."""

    async def reads(manager: object, obj: object) -> str:
        if error is not None:
            raise error
        return "tokens"

    return asyncio.run(unreadable_is_refused(reads, None, obj))


def opened(path: str) -> OSError:
    """What this machine raises for a file."""
    with pytest.raises(OSError) as raised, open(path, "rb") as file:
        file.read()
    return raised.value


def no_answer() -> Exception:
    with pytest.raises(requests.RequestException) as raised:
        requests.get("http://127.0.0.1:9/picture.png", timeout=1)
    return raised.value


LONG = "/9j/" + "A" * 5000  # base64 of a JPEG: the host takes it for a path


@pytest.mark.parametrize(
    ("picture", "error"),
    [
        ("/nowhere/picture.png", opened("/nowhere/picture.png")),
        ("file:///nowhere/my%20picture.png", opened("/nowhere/my picture.png")),
        ({"url": "/tmp"}, opened("/tmp")),
        ("/etc/hostname/picture.png", opened("/etc/hostname/picture.png")),
        (LONG, opened(LONG)),
        ("http://127.0.0.1:9/picture.png", no_answer()),
        ("data:image/png;base64,AAAA", Image.DecompressionBombError("400000000 pixels")),
        (None, re.error("missing )")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_client_causes_is_refused(picture: object, error: Exception) -> None:
    with pytest.raises(ValueError, match=f"cannot be read: {type(error).__name__}: ") as refused:
        read(one_request(image_data=[picture]), error)
    assert refused.value.__cause__ is error and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/nowhere/picture.png"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EMFILE, "Too many open files", "/nowhere/picture.png"),
        opened("/nowhere/tokenizer.json"),  # not what the request names
        OSError("no errno at all"),
        MemoryError(),
        TypeError("'NoneType' object is not subscriptable"),
        AttributeError("no attribute 'get'"),
        KeyError("pixel_values"),
        IndexError("index 1 is out of bounds"),
        RuntimeError("the processor pool is broken"),
    ],
    ids=repr,
)
def test_a_fault_of_the_machine_or_of_the_code_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        read(one_request(image_data=["/nowhere/picture.png"]), error)
    assert raised.value is error


def test_what_the_host_refuses_keeps_its_words() -> None:
    with pytest.raises(ValueError, match="^too long$"):
        read(one_request(), ValueError("too long"))


@pytest.mark.parametrize("kept", [None, [], ["a.png"], [{"format": "processor_output"}], [[]]])
def test_a_request_of_an_ordinary_shape_is_read(kept: object) -> None:
    assert read(one_request(image_data=kept)) == "tokens"
    assert read(one_request(image_data=["a.png"], video_data=[["frame.png"]])) == "tokens"


@pytest.mark.parametrize("picture", [["a.png"], {"name": "a.png"}, {"url": ["a.png"]}])
def test_what_is_no_picture_is_refused(picture: object) -> None:
    with pytest.raises(ValueError, match="cannot be read: image_data: got a (list|dict)"):
        read(one_request(image_data=[picture]))


def test_parameters_of_another_request_are_refused() -> None:
    obj = one_request()
    obj.sampling_params = [{}, {}]
    with pytest.raises(ValueError, match="cannot be read: sampling_params: got a list"):
        read(obj)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left")])
def test_a_fault_while_a_processor_is_read_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(text: str) -> None:
        raise error

    monkeypatch.setattr(CustomLogitProcessor, "from_str", fails)
    with pytest.raises(type(error)):
        ends_the_server(request(processor="{}"))
