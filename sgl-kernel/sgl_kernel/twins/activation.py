"""Gated activations over [..., 2D] -> [..., D]: act(first half) times second half."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["gelu_and_mul_cpu", "gelu_tanh_and_mul_cpu", "silu_and_mul_cpu"]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.size(-1) % 2:
        raise ValueError(f"Expected [..., 2D] with an even last size, got {tuple(x.shape)}")
    gate, up = x.float().chunk(2, dim=-1)
    return gate, up


def silu_and_mul_cpu(x: Tensor) -> Tensor:
    gate, up = _halves(x)
    return (F.silu(gate) * up).to(x.dtype)


def gelu_and_mul_cpu(x: Tensor) -> Tensor:
    gate, up = _halves(x)
    return (F.gelu(gate) * up).to(x.dtype)


def gelu_tanh_and_mul_cpu(x: Tensor) -> Tensor:
    gate, up = _halves(x)
    return (F.gelu(gate, approximate="tanh") * up).to(x.dtype)
