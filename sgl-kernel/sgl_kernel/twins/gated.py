"""Ops that no dense Qwen-VL model calls; they have no C++ version.

SGLang looks the ops up while it imports Qwen3.5's modules. SGLang would swallow the import error of
a missing op, and start-up would end with "No processor registered".
"""

import torch
from torch import Tensor

__all__ = [
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
]


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """x [T, D] times sigmoid(gate [T, D] or [T, H, D / H]), in place."""
    x.copy_(x.float() * torch.sigmoid(gate.reshape(x.shape).float()))


def _gemma_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * scale * (1.0 + weight.float())).to(x.dtype)


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """RMS norm of each head with weight 1 + w: q and k, [T, H * D] -> [T * H, D]."""
    return (
        _gemma_rmsnorm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_rmsnorm(k.reshape(-1, head_dim), k_weight, eps),
    )


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """q_gate [T, H * 2D] holds each head's [q | gate] -> normed q and k, and gate, each [-1, D]."""
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).split(head_dim, dim=-1)
    q, k = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim)
    return q, k, gate.reshape(-1, head_dim).clone()


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, num_heads_qk: int, num_heads_v: int, head_qk: int, head_v: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split [q | k | v | z] and [b | a] into qkv, z [T, Hv, Dv], b and a [T, Hv]."""
    z_size = num_heads_v * head_v
    qkv_size = 2 * num_heads_qk * head_qk + z_size
    qkv, z = qkvz.split([qkv_size, z_size], dim=-1)
    b, a = ba.split(num_heads_v, dim=-1)
    return qkv.clone(), z.reshape(-1, num_heads_v, head_v).clone(), b.clone(), a.clone()
