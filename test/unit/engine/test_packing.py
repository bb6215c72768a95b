"""Which weights go through this project's packed product, on a host that packs none in float32."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import sgl_kernel
import torch
from sglang.srt.layers import amx_utils
from sglang.srt.speculative.glance.engine.host.adjustments import (
    lm_head_by_rows,
    on_our_cpu_ops,
    packs_weight,
)


def host(weight: torch.Tensor) -> bool:
    return weight.dtype == torch.bfloat16


def test_float32_too_where_the_ops_are_ours(monkeypatch) -> None:
    weights = [torch.empty(16, 32, dtype=t) for t in (torch.bfloat16, torch.float32, torch.float64)]
    assert on_our_cpu_ops()
    assert [packs_weight(host, w) for w in weights] == [True, True, False]
    monkeypatch.delattr(sgl_kernel, "USES_TWINS")
    assert not on_our_cpu_ops()


def test_a_layer_of_the_host_takes_the_packed_product(monkeypatch) -> None:
    ours = functools.partial(packs_weight, amx_utils.dtype_is_supported)
    monkeypatch.setattr(amx_utils, "dtype_is_supported", ours)
    # What a server hears on a processor without AMX too, by the ops' own platform plugin.
    monkeypatch.setattr(amx_utils, "cpu_has_amx_support", lambda: True)
    layer = torch.nn.Linear(32, 16)
    x, plain = torch.randn(3, 32), layer.weight.detach().clone()
    amx_utils._amx_process_weight_after_loading(layer, ["weight"])
    assert layer.use_intel_amx_backend
    got = torch.ops.sgl_kernel.weight_packed_linear(x, layer.weight, layer.bias, True)
    torch.testing.assert_close(got, torch.nn.functional.linear(x, plain, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_a_token_do_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    def refused(*arguments: object) -> torch.Tensor:
        raise AssertionError("the host's product was taken")

    processor = SimpleNamespace(use_fp32_lm_head=False)
    head = SimpleNamespace(weight=torch.randn(500, 256, dtype=dtype))
    hidden = torch.randn(33, 256, dtype=dtype)
    whole = lm_head_by_rows(refused, processor, hidden, head, None, out=None)
    for row in range(33):
        alone = lm_head_by_rows(refused, processor, hidden[row : row + 1], head)
        assert torch.equal(whole[row : row + 1], alone)


def test_other_lm_heads_are_the_hosts() -> None:
    def original(processor: object, hidden: torch.Tensor, head: object) -> str:
        return "host"

    plain, exact = (SimpleNamespace(use_fp32_lm_head=flag) for flag in (False, True))
    hidden, weight = torch.randn(2, 8), torch.randn(4, 8)
    for processor, head in (
        (exact, SimpleNamespace(weight=weight)),
        (plain, SimpleNamespace(weight=weight.half())),
        (plain, SimpleNamespace(weight=weight, set_lora=None)),
        (plain, SimpleNamespace(qweight=weight)),
    ):
        assert lm_head_by_rows(original, processor, hidden, head) == "host"
