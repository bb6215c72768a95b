"""Rotary embeddings: C++ equals the twins bit for bit, strided and in place."""

import pytest
import torch
from sgl_kernel import twins

ops = torch.ops.sgl_kernel
DTYPES = [torch.float32, torch.bfloat16]
HEADS, KV_HEADS = 4, 2


def cache(rotary: int, dtype: torch.dtype) -> torch.Tensor:
    angles = torch.arange(50.0)[:, None] * torch.rand(rotary // 2)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)


def q_and_k(rows: int, head: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k as slices of one qkv tensor, as SGLang's layers pass them."""
    sizes = [HEADS * head, KV_HEADS * head, KV_HEADS * head]
    qkv = torch.randn(rows, sum(sizes)).to(dtype)
    q, k, _ = qkv.split(sizes, dim=-1)
    return q, k


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rows, head, rotary", [(1, 64, 64), (9, 72, 72), (5, 64, 32), (0, 64, 64)])
def test_rotary_equals_its_twin(rows, head, rotary, neox, dtype):
    table = cache(rotary, dtype)
    positions = torch.randint(0, 50, (rows,))
    q, k = q_and_k(rows, head, dtype)
    before = q.clone()
    for shaped in (
        (q, k),
        (q.unflatten(-1, (HEADS, head)), k.unflatten(-1, (KV_HEADS, head))),
    ):
        got = ops.rotary_embedding_cpu(positions, *shaped, head, table, neox)
        expected = twins.rotary_embedding_cpu(positions, *shaped, head, table, neox)
        for g, e in zip(got, expected, strict=True):
            assert g.shape == e.shape and torch.equal(g, e)
    assert torch.equal(q, before), "the inputs must stay as they are"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("interleaved, section", [(True, [16, 8, 8]), (False, [8, 12, 12])])
def test_multimodal_rotary_writes_in_place(axes, section, interleaved, neox, dtype):
    table = cache(64, torch.float32)
    positions = torch.randint(0, 50, (7,) if axes == 1 else (3, 7))
    q, k = q_and_k(7, 64, dtype)
    q_twin, k_twin = q.clone(), k.clone()
    ops.multimodal_rotary_embedding_cpu(positions, q, k, 64, table, section, interleaved, neox)
    twins.multimodal_rotary_embedding_cpu(
        positions, q_twin, k_twin, 64, table, section, interleaved, neox
    )
    assert torch.equal(q, q_twin) and torch.equal(k, k_twin)


def test_equal_axes_rotate_as_one_axis_does():
    """On text the three axes have equal positions, and the result must equal plain rotary's."""
    table = cache(64, torch.float32)
    positions = torch.randint(0, 50, (6,))
    q, k = q_and_k(6, 64, torch.float32)
    expected = ops.rotary_embedding_cpu(positions, q, k, 64, table, True)
    ops.multimodal_rotary_embedding_cpu(
        positions.expand(3, -1), q, k, 64, table, [16, 8, 8], True, True
    )
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor_dtype", DTYPES)
@pytest.mark.parametrize("rows, head", [(1, 64), (13, 80), (0, 64)])
def test_vision_rotary_equals_its_twin(rows, head, factor_dtype, dtype):
    q, k = torch.randn(2, rows, 3, head).to(dtype)
    cos, sin = torch.randn(2, rows, head).to(factor_dtype)
    got = ops.apply_rotary_pos_emb_cpu(q, k, cos, sin)
    expected = twins.apply_rotary_pos_emb_cpu(q, k, cos, sin)
    for g, e in zip(got, expected, strict=True):
        assert torch.equal(g, e)


def test_errors_name_the_wrong_value():
    table = cache(64, torch.float32)
    q, k = q_and_k(4, 64, torch.float32)
    positions = torch.arange(4)
    with pytest.raises(RuntimeError, match="positions below 50, got 50"):
        ops.rotary_embedding_cpu(positions + 47, q, k, 64, table, True)
    with pytest.raises(RuntimeError, match=r"three sizes that add up to 32, got \[4, 4, 4\]"):
        ops.multimodal_rotary_embedding_cpu(
            positions.expand(3, -1), q, k, 64, table, [4, 4, 4], True, True
        )
    with pytest.raises(RuntimeError, match=r"expected 4 positions and keys.*got 3"):
        ops.rotary_embedding_cpu(positions[:3], q, k, 64, table, True)
    with pytest.raises(RuntimeError, match=r"expected \[T, H \* 60\]"):
        ops.rotary_embedding_cpu(positions, q, k, 60, table, True)
    with pytest.raises(RuntimeError, match=r"expected cos of shape \[4, 64\]"):
        ops.apply_rotary_pos_emb_cpu(
            q.unflatten(-1, (4, 64)), k.unflatten(-1, (2, 64)), *torch.randn(2, 4, 32)
        )
