"""Requests that would end the scheduler, and the reason each is refused with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.engine.refusals import ends_the_server


def request(ids: list[int] | None = None, **params: object) -> SimpleNamespace:
    ids = [1] if ids is None else ids
    return SimpleNamespace(
        origin_input_ids=ids, sampling_params=SamplingParams(**params), vocab_size=512
    )


@pytest.mark.parametrize(
    "params", [{}, {"min_new_tokens": 3}, {"min_new_tokens": 3, "stop_token_ids": {0, 511}}]
)
def test_ordinary_requests_pass(params: dict) -> None:
    assert ends_the_server(request(**params)) is None


def test_empty_prompt() -> None:
    assert "prompt is empty" in ends_the_server(request([]))


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
