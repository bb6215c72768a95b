"""A head's K and V of some context: all layers at once equals layer by layer."""

from types import SimpleNamespace

import pytest
import sgl_kernel  # noqa: F401
import torch
import torch.nn.functional as F
from sglang.srt.speculative.glance.engine.host.cpu_head import StackedContextKV
from sglang.srt.speculative.glance.engine.round.commit import layerwise_kv

HIDDEN, HEADS, HEAD_DIM, Q_SIZE = 256, 2, 64, 128
KV_SIZE = HEADS * HEAD_DIM


def rotate(positions: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    x = k.view(len(k), -1, HEAD_DIM).float()
    angles = positions[:, None, None] * torch.logspace(0, -4, HEAD_DIM // 2)
    a, b = x.chunk(2, dim=-1)
    turned = [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]
    return torch.cat(turned, dim=-1).to(k.dtype).flatten(1)


class Projection(torch.nn.Module):
    def __init__(self, dtype: torch.dtype, has_bias: bool) -> None:
        super().__init__()
        self.weight = (torch.randn(Q_SIZE + 2 * KV_SIZE, HIDDEN) / 16).to(dtype)
        self.bias = torch.randn(Q_SIZE + 2 * KV_SIZE).to(dtype) if has_bias else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.ops.sgl_kernel.weight_packed_linear(x, self.weight, self.bias, True), None


def head(dtype: torch.dtype, has_bias: bool, v_scale: float | None = None) -> SimpleNamespace:
    def attention() -> SimpleNamespace:
        norm = (1 + torch.randn(HEAD_DIM) / 4).to(dtype)
        return SimpleNamespace(
            qkv_proj=Projection(dtype, has_bias),
            q_size=Q_SIZE,
            kv_size=KV_SIZE,
            num_kv_heads=HEADS,
            head_dim=HEAD_DIM,
            v_scale=v_scale,
            k_norm=SimpleNamespace(weight=norm, variance_epsilon=1e-6),
            apply_k_norm=lambda k: F.rms_norm(
                k.reshape(-1, HEAD_DIM), (HEAD_DIM,), norm, 1e-6
            ).view_as(k),
            apply_k_rope=rotate,
        )

    return SimpleNamespace(layers=[SimpleNamespace(self_attn=attention()) for _ in range(3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_stacked_equals_layerwise(dtype: torch.dtype, has_bias: bool, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    model = head(dtype, has_bias)
    context = torch.randn(num_tokens, HIDDEN).to(dtype)
    positions = torch.arange(5, 5 + num_tokens)
    assert StackedContextKV.serves(model)
    stacked = StackedContextKV(model)(context, positions)
    for got, expected in zip(stacked, layerwise_kv(model, context, positions), strict=True):
        torch.testing.assert_close(got, expected)


def test_other_heads_go_layer_by_layer() -> None:
    quantised = head(torch.float32, has_bias=False)
    quantised.layers[1].self_attn.qkv_proj.weight = torch.zeros(4, 4, dtype=torch.int8)
    assert not StackedContextKV.serves(quantised)
    assert not StackedContextKV.serves(head(torch.float32, has_bias=False, v_scale=0.5))


def test_a_value_scale_is_applied() -> None:
    torch.manual_seed(0)
    plain = head(torch.float32, has_bias=False)
    torch.manual_seed(0)
    scaled = head(torch.float32, has_bias=False, v_scale=0.5)
    context, positions = torch.randn(3, HIDDEN), torch.arange(3)
    for (_, v), (_, half) in zip(
        layerwise_kv(plain, context, positions),
        layerwise_kv(scaled, context, positions),
        strict=True,
    ):
        torch.testing.assert_close(half, v / 2)
