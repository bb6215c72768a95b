"""Which weights go through this project's packed product, on a host that packs none in float32."""

from __future__ import annotations

import sgl_kernel
import torch
from sglang.srt.layers import amx_utils
from sglang.srt.plugins import load_plugins
from sglang.srt.speculative.glance.engine.adjustments import packs_weight


def host(weight: torch.Tensor) -> bool:
    return weight.dtype == torch.bfloat16


def test_float32_too_where_the_ops_are_ours(monkeypatch) -> None:
    weights = [torch.empty(16, 32, dtype=t) for t in (torch.bfloat16, torch.float32, torch.float64)]
    assert [packs_weight(host, w) for w in weights] == [True, True, False]
    monkeypatch.delattr(sgl_kernel, "USES_TWINS")
    assert [packs_weight(host, w) for w in weights] == [True, False, False]


def test_a_layer_of_the_host_takes_the_packed_product() -> None:
    load_plugins()
    layer = torch.nn.Linear(32, 16)
    x, plain = torch.randn(3, 32), layer.weight.detach().clone()
    amx_utils._amx_process_weight_after_loading(layer, ["weight"])
    assert layer.use_intel_amx_backend
    got = torch.ops.sgl_kernel.weight_packed_linear(x, layer.weight, layer.bias, True)
    torch.testing.assert_close(got, torch.nn.functional.linear(x, plain, layer.bias))
