"""Norms over the last dimension, computed in float32 and rounded once."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["fused_add_rmsnorm_cpu", "layernorm_cpu", "rmsnorm_cpu"]


def rmsnorm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D], weight [D] -> new tensor of x's shape and dtype."""
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def fused_add_rmsnorm_cpu(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += x, then x = rmsnorm(residual), both in place."""
    residual.add_(x)
    x.copy_(rmsnorm_cpu(residual, weight, eps))


def layernorm_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """x [..., D], weight and bias [D] -> new tensor of x's shape and dtype."""
    bias32 = None if bias is None else bias.float()
    return F.layer_norm(x.float(), (x.size(-1),), weight.float(), bias32, eps).to(x.dtype)
