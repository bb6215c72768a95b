"""Rotary position embeddings, rotated in float32.

A row of cos_sin_cache [positions, R] holds R / 2 cosines, then R / 2 sines; a lane is a column
of the cache. The ops rotate the first R of a head's D elements. Neox pairs element i with element
i + R / 2, the other layout pairs neighbours.
"""

import torch
from torch import Tensor

__all__ = [
    "apply_rotary_pos_emb_cpu",
    "multimodal_rotary_embedding_cpu",
    "rotary_embedding_cpu",
]


def rotary_embedding_cpu(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    """positions [T], query and key [T, H * D] or [T, H, D], any row stride -> new tensors."""
    cos, sin = cos_sin_cache[positions.flatten()].float().chunk(2, dim=-1)
    return (
        _turned(query, head_size, cos, sin, is_neox),
        _turned(key, head_size, cos, sin, is_neox),
    )


def multimodal_rotary_embedding_cpu(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    mrope_section: list[int] | None,
    mrope_interleaved: bool,
    is_neox: bool,
) -> None:
    """In place. positions [T], or [3, T] with mrope_section, the number of pairs of each axis."""
    if positions.dim() == 1:
        lanes = cos_sin_cache[positions]
    else:
        lanes = _lanes_by_axis(cos_sin_cache[positions], mrope_section, mrope_interleaved)
    cos, sin = lanes.float().chunk(2, dim=-1)
    query.copy_(_turned(query, head_size, cos, sin, is_neox))
    key.copy_(_turned(key, head_size, cos, sin, is_neox))


def apply_rotary_pos_emb_cpu(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """query and key [T, H, D], cos and sin [T, D]: x * cos + rotate_half(x) * sin."""
    cos32, sin32 = cos.float().unsqueeze(1), sin.float().unsqueeze(1)

    def turn(x: Tensor) -> Tensor:
        x32 = x.float()
        low, high = x32.chunk(2, dim=-1)
        return (x32 * cos32 + torch.cat([-high, low], dim=-1) * sin32).to(x.dtype)

    return turn(query), turn(key)


def _lanes_by_axis(lanes: Tensor, section: list[int] | None, interleaved: bool) -> Tensor:
    """lanes [3, T, R] -> [T, R]: each lane from its axis (time, height or width)."""
    half = lanes.size(-1) // 2
    if section is None or len(section) != 3 or sum(section) != half:
        raise ValueError(f"Expected a section of three sizes that add up to {half}, got {section}")
    axis = torch.zeros(half, dtype=torch.int64)
    if interleaved:
        axis[1 : 3 * section[1] : 3] = 1
        axis[2 : 3 * section[2] : 3] = 2
    else:
        axis[section[0] : section[0] + section[1]] = 1
        axis[section[0] + section[1] :] = 2
    axis_of_lane = axis.repeat(2).expand(1, lanes.size(1), -1)
    return lanes.gather(0, axis_of_lane).squeeze(0)


def _turned(x: Tensor, head_size: int, cos: Tensor, sin: Tensor, is_neox: bool) -> Tensor:
    """x [T, H * D] or [T, H, D], cos and sin [T, R / 2] -> a new contiguous tensor of x's shape."""
    num_heads = x.size(1) if x.dim() == 3 else x.size(1) // head_size
    heads = x.reshape(x.size(0), num_heads, head_size)
    rotary = 2 * cos.size(-1)
    part, rest = heads[..., :rotary].float(), heads[..., rotary:]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = part.chunk(2, dim=-1) if is_neox else (part[..., ::2], part[..., 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    part = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat([part.to(x.dtype), rest], dim=-1).reshape(x.shape)
