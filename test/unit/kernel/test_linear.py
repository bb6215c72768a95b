"""Packed linear and patch embedding: C++ against the twins, and the same bits in every batch."""

import pytest
import torch
from sgl_kernel import twins

ops = torch.ops.sgl_kernel
DTYPES = [torch.float32, torch.bfloat16]


def problem(rows: int, columns: int, depth: int, dtype: torch.dtype):
    x = torch.randn(rows, depth).to(dtype)
    weight = ops.convert_weight_packed((torch.randn(columns, depth) / depth**0.5).to(dtype))
    return x, weight, torch.randn(columns)


def close(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias) -> None:
    """Compare with a product in float64, because the twin adds and rounds in another order."""
    exact = torch.nn.functional.linear(x.double(), weight.double())
    exact = exact if bias is None else exact + bias.double()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[got.dtype]
    torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 33])
@pytest.mark.parametrize("columns, depth", [(16, 32), (50, 256), (7, 100), (1, 5)])
def test_linear_equals_its_twin(rows, columns, depth, dtype):
    x, weight, bias = problem(rows, columns, depth, dtype)
    for b in (bias, None):
        got = ops.weight_packed_linear(x, weight, b, True)
        close(got, x, weight, b)
        twin = twins.weight_packed_linear(x, weight, b, True)
        assert got.shape == twin.shape and got.dtype == twin.dtype
        torch.testing.assert_close(got, twin, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_prefill(dtype):
    """From 4,096 rows on, bfloat16 goes through oneDNN if the processor has AMX or AVX-512-bf16."""
    x, weight, bias = problem(4100, 48, 256, dtype)
    for b in (bias, None):
        close(ops.weight_packed_linear(x, weight, b, True), x, weight, b)


def test_linear_reads_strided_rows():
    x, weight, _ = problem(5, 48, 64, torch.bfloat16)
    wide = torch.zeros(5, 200, dtype=x.dtype)
    wide[:, 70:134] = x
    got = ops.weight_packed_linear(wide[:, 70:134], weight, None, True)
    assert torch.equal(got, ops.weight_packed_linear(x, weight, None, True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns, depth", [(512, 1024), (48, 256), (13, 72)])
def test_a_row_has_the_same_bits_in_every_batch(columns, depth, dtype):
    x, weight, bias = problem(70, columns, depth, dtype)
    single_rows = torch.cat(
        [ops.weight_packed_linear(x[i : i + 1], weight, bias, True) for i in range(70)]
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in (2, 3, 5, 6, 7, 8, 12, 32, 33, 70):
            got = ops.weight_packed_linear(x[:rows], weight, bias, True)
            assert torch.equal(got, single_rows[:rows]), f"{rows} rows on {threads} threads"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_the_largest_verify_batch(dtype):
    """48 requests, SGLang's default, with 64 nodes each."""
    x, weight, bias = problem(48 * 64, 64, 128, dtype)
    got = ops.weight_packed_linear(x, weight, bias, True)
    for rows in (slice(0, 1), slice(1500, 1532), slice(3071, 3072)):
        assert torch.equal(got[rows], ops.weight_packed_linear(x[rows], weight, bias, True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("patches", [0, 1, 24])
def test_patch_embedding_equals_its_twin(patches, dtype):
    x = torch.randn(patches, 3, 2, 8, 8).to(dtype)
    weight = ops.conv3d_embed_weight_pack((torch.randn(40, 3, 2, 8, 8) / 20).to(dtype))
    bias = torch.randn(40).to(dtype)
    got = ops.conv3d_embed_cpu(x, weight, bias, is_vnni=True)
    assert got.shape == (patches, 40) and got.dtype == dtype
    close(got, x.flatten(1), weight.flatten(1), bias)
    twin = twins.conv3d_embed_cpu(x, weight, bias, True)
    torch.testing.assert_close(got, twin, atol=3e-2, rtol=3e-2)


def test_packing_keeps_plain_rows():
    """SGLang's drafts multiply by a target's packed lm_head with a plain torch product."""
    weight = torch.randn(32, 64, dtype=torch.bfloat16)
    assert torch.equal(ops.convert_weight_packed(weight), weight)
    assert torch.equal(ops.convert_weight_packed(weight.t()), weight.t().contiguous())


def test_errors_name_the_wrong_value():
    x, weight, _ = problem(2, 16, 32, torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"got \[2, 32\] and \[16, 16\]"):
        ops.weight_packed_linear(x, weight[:, :16].contiguous(), None, True)
    with pytest.raises(RuntimeError, match=r"expected weight in the dtype of x"):
        ops.weight_packed_linear(x.float(), weight, None, True)
    with pytest.raises(RuntimeError, match=r"of shape \[16\], got \[3\]"):
        ops.weight_packed_linear(x, weight, torch.ones(3), True)
    with pytest.raises(RuntimeError, match="--dtype bfloat16 or float32"):
        ops.convert_weight_packed(weight.half())
    with pytest.raises(RuntimeError, match=r"expected \[out, C, t, p, p\]"):
        ops.conv3d_embed_weight_pack(weight)
