"""Linear layers over a packed weight, and the patch embedding of the vision tower."""

import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "conv3d_embed_cpu",
    "conv3d_embed_weight_pack",
    "convert_weight_packed",
    "weight_packed_linear",
]


def convert_weight_packed(weight: Tensor) -> Tensor:
    """[out, in] stays as plain rows, the layout that the twins and C++ read."""
    return weight.contiguous()


def weight_packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    """x [T, in], weight [out, in], bias float32 [out] -> [T, out] in x's dtype."""
    bias = None if bias is None else bias.to(x.dtype)
    return F.linear(x, weight, bias)


def conv3d_embed_weight_pack(weight: Tensor) -> Tensor:
    """[out, C, t, p, p] keeps its shape: SGLang reads the five dimensions later."""
    return weight.contiguous()


def conv3d_embed_cpu(x: Tensor, weight: Tensor, bias: Tensor, is_vnni: bool) -> Tensor:
    """x [N, C, t, p, p] of N patches -> [N, out]."""
    return F.linear(x.flatten(1), weight.flatten(1), bias.to(x.dtype))
