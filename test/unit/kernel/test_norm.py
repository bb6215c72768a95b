"""Norms and gated activations: C++ against the twins, and the same bits in every batch."""

import pytest
import torch
from sgl_kernel import twins

ops = torch.ops.sgl_kernel
EPS = 1e-6
DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 256), (7, 64), (3, 5, 128), (2, 33), (0, 64)]


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 1e-2}[got.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_equal_their_twins(shape, dtype):
    x = torch.randn(shape).to(dtype)
    weight, bias = torch.randn(2, shape[-1]).to(dtype)
    close(ops.rmsnorm_cpu(x, weight, EPS), twins.rmsnorm_cpu(x, weight, EPS))
    for b in (bias, None):
        close(ops.layernorm_cpu(x, weight, b, EPS), twins.layernorm_cpu(x, weight, b, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_reads_strided_rows(dtype):
    qkv = torch.randn(5, 300).to(dtype)
    weight = torch.randn(64).to(dtype)
    part = qkv[:, 100:164]
    got = ops.rmsnorm_cpu(part, weight, EPS)
    assert got.is_contiguous()
    assert torch.equal(got, ops.rmsnorm_cpu(part.contiguous(), weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 256), (6, 72), (0, 64)])
def test_fused_add_norm_writes_x_and_residual(shape, dtype):
    x, residual = torch.randn(2, *shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype)
    x_twin, residual_twin = x.clone(), residual.clone()
    ops.fused_add_rmsnorm_cpu(x, residual, weight, EPS)
    twins.fused_add_rmsnorm_cpu(x_twin, residual_twin, weight, EPS)
    assert torch.equal(residual, residual_twin)
    close(x, x_twin)


def test_fused_add_norm_writes_through_strides():
    wide = torch.randn(4, 200)
    expected = wide.clone()
    residual, weight = torch.randn(4, 64), torch.randn(64)
    twins.fused_add_rmsnorm_cpu(expected[:, 50:114], residual.clone(), weight, EPS)
    ops.fused_add_rmsnorm_cpu(wide[:, 50:114], residual, weight, EPS)
    close(wide, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["silu_and_mul_cpu", "gelu_and_mul_cpu", "gelu_tanh_and_mul_cpu"])
@pytest.mark.parametrize("shape", [(1, 1024), (9, 66), (2, 3, 32), (0, 8)])
def test_gated_activations_equal_their_twins(name, shape, dtype):
    x = 4 * torch.randn(shape).to(dtype)
    close(getattr(ops, name)(x), getattr(twins, name)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype):
    x, residual = torch.randn(2, 40, 256).to(dtype)
    weight, bias = torch.randn(2, 256).to(dtype)
    batch_results = [
        ops.rmsnorm_cpu(x, weight, EPS),
        ops.layernorm_cpu(x, weight, bias, EPS),
        ops.silu_and_mul_cpu(x),
    ]
    summed = x.clone()
    ops.fused_add_rmsnorm_cpu(summed, residual.clone(), weight, EPS)
    torch.set_num_threads(2)
    for i in (0, 17, 39):
        row = x[i : i + 1]
        single_results = [
            ops.rmsnorm_cpu(row, weight, EPS),
            ops.layernorm_cpu(row, weight, bias, EPS),
            ops.silu_and_mul_cpu(row),
        ]
        for single, batch in zip(single_results, batch_results, strict=True):
            assert torch.equal(single[0], batch[i])
        row = row.clone()
        ops.fused_add_rmsnorm_cpu(row, residual[i : i + 1].clone(), weight, EPS)
        assert torch.equal(row[0], summed[i])


def test_errors_name_the_wrong_value():
    x = torch.randn(2, 64)
    with pytest.raises(RuntimeError, match=r"expected weight of shape \[64\], got \[32\]"):
        ops.rmsnorm_cpu(x, torch.ones(32), EPS)
    with pytest.raises(RuntimeError, match=r"dtype of x \(Float\), got BFloat16"):
        ops.rmsnorm_cpu(x, torch.ones(64, dtype=torch.bfloat16), EPS)
    with pytest.raises(RuntimeError, match="expected float32 or bfloat16, got Half"):
        ops.rmsnorm_cpu(x.half(), torch.ones(64).half(), EPS)
    with pytest.raises(RuntimeError, match="even last size"):
        ops.silu_and_mul_cpu(torch.randn(2, 5))
    with pytest.raises(RuntimeError, match="to write to, got strides"):
        ops.fused_add_rmsnorm_cpu(torch.randn(64, 2).t(), x, torch.ones(64), EPS)
