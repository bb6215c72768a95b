"""What the head needs on a CPU, where the host would take a Triton kernel or a slow product."""

from __future__ import annotations

from typing import Any

import torch


def suit_head(draft_model: Any) -> None:
    """Adjust this instance of the head to a CPU: QK-norm and rotary without Triton, and its context
    projection through `sgl_kernel` as the host's own layers do. Without AMX, torch's bfloat16
    product of 16 rows costs four to five times as much."""
    for layer in draft_model.layers:
        layer.self_attn.use_table_qk_norm_rope = False
    fc = draft_model.fc
    if fc.weight.dtype in (torch.float32, torch.bfloat16):
        fc.forward = lambda x: torch.ops.sgl_kernel.weight_packed_linear(x, fc.weight, None, True)


class StackedContextKV:
    """K and V of some context for all layers of the head: one product, one norm, one rotation.

    The cost of a commit on a CPU is mostly the number of calls. `sgl_kernel` packs a weight row by
    row, so the K and V rows of the layers' QKV projections can be stacked into one weight."""

    def __init__(self, draft_model: Any) -> None:
        layers = [layer.self_attn for layer in draft_model.layers]
        first = layers[0]
        self.heads, self.head_dim = first.num_kv_heads, first.head_dim
        self.rotate = first.apply_k_rope
        self.weight = torch.cat([a.qkv_proj.weight[a.q_size :] for a in layers])
        biases = [a.qkv_proj.bias for a in layers]
        self.bias = None if biases[0] is None else torch.cat([b[first.q_size :] for b in biases])
        # [L, 1, D]
        self.norm = torch.stack([a.k_norm.weight.float() for a in layers])[:, None]
        self.eps = first.k_norm.variance_epsilon

    @staticmethod
    def serves(draft_model: Any) -> bool:
        """Whether the layers' projections are plain float32 or bfloat16 matrices."""
        layers = [layer.self_attn for layer in draft_model.layers]
        weights = [getattr(a.qkv_proj, "weight", None) for a in layers]
        return all(
            w is not None and w.dim() == 2 and w.dtype in (torch.float32, torch.bfloat16)
            for w in weights
        ) and all(a.v_scale is None for a in layers)

    def __call__(
        self, context: torch.Tensor, positions: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """``context [n, H]``, ``positions [n] int64`` -> each layer's K and V ``[n, heads, D]``."""
        kv = torch.ops.sgl_kernel.weight_packed_linear(context, self.weight, self.bias, True)
        k, v = kv.view(len(context), -1, 2, self.heads, self.head_dim).unbind(2)
        k32 = k.float()
        k32 = k32 * torch.rsqrt(k32.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm
        k = self.rotate(positions, k32.to(v.dtype).flatten(1)).view(v.shape)
        return list(zip(k.unbind(1), v.unbind(1), strict=True))
