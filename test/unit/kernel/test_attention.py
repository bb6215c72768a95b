"""Attention: C++ against the twins on random layouts, and the same bits from every C++ op."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged import Paged, random_tree
from sgl_kernel import twins

ops = torch.ops.sgl_kernel
DTYPES = [torch.float32, torch.bfloat16]


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float32: 5e-6, torch.bfloat16: 1e-2}[got.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


layouts = st.fixed_dictionaries(
    {
        "num_heads": st.sampled_from([2, 4, 6]),
        "num_kv_heads": st.sampled_from([1, 2]),
        "head_size": st.sampled_from([16, 64, 72, 100]),
        "value_size": st.sampled_from([16, 64, 72]),
        "dtype": st.sampled_from(DTYPES),
        "window": st.sampled_from([0, 0, 1, 5, 33, 70]),
        "cap": st.sampled_from([0.0, 0.0, 2.0]),
        "use_sinks": st.booleans(),
        "page_size": st.sampled_from([1, 4, 16]),
    }
)
lengths = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(layouts, lengths, st.sampled_from(["causal", "all", "tree"]), st.integers(0, 2**30))
def test_extend_equals_its_twin(layout, lengths, visibility, seed):
    torch.manual_seed(seed)
    num_new = [new for _, new in lengths]
    p = Paged([prefix + new for prefix, new in lengths], num_new, **layout)
    mask = torch.cat([random_tree(n).flatten() for n in num_new]) if visibility == "tree" else None
    is_causal = visibility != "all"
    close(p.extend(mask, is_causal), p.extend(mask, is_causal, twin=True))


@settings(max_examples=40, deadline=None)
@given(layouts, st.lists(st.integers(1, 130), min_size=1, max_size=4), st.integers(0, 2**30))
def test_decode_equals_its_twin(layout, seq_lens, seed):
    torch.manual_seed(seed)
    p = Paged(seq_lens, [1] * len(seq_lens), **layout)
    close(p.decode(), p.decode(twin=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_writes_the_new_key_first(dtype):
    p = Paged([5, 40], [1, 1], dtype=dtype)
    loc = torch.stack([p.slots(b)[-1] for b in range(2)])
    new_k = torch.randn(2, 2, 64).to(dtype)
    new_v = torch.randn(2, 4, 64).to(dtype)[:, ::2]  # strided, as a slice of qkv is
    twin_k, twin_v = p.k.clone(), p.v.clone()
    twin_k[loc], twin_v[loc] = new_k, new_v
    got = p.decode(k=new_k, v=new_v, loc=loc)
    assert torch.equal(p.k, twin_k) and torch.equal(p.v, twin_v)
    close(got, p.decode(twin=True))


@pytest.mark.parametrize("is_causal", [True, False])
def test_slots_of_no_request_are_never_read(is_causal):
    p = Paged([40, 17], [6, 17], dtype=torch.bfloat16)
    expected = p.extend(is_causal=is_causal)
    used = torch.cat([p.slots(0), p.slots(1)])
    unused = torch.ones(p.num_slots, dtype=torch.bool)
    unused[used] = False
    p.k[unused] = float("nan")
    p.v[unused] = float("nan")
    assert torch.equal(p.extend(is_causal=is_causal), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 20, 45])
@pytest.mark.parametrize("prefix", [0, 1, 31, 32, 63, 100])
def test_a_query_gets_the_same_bits_from_every_op(prefix, window, dtype):
    """Decode, causal extend and tree verify agree if the query sees the same keys in one order."""
    num_new = 37
    p = Paged([prefix + num_new, 12], [num_new, 1], window=window, dtype=dtype, use_sinks=True)
    slots = p.slots(0)
    causal = p.extend()
    tree = random_tree(num_new)
    verified = p.extend(torch.cat([tree.flatten(), torch.ones(1, dtype=torch.bool)]))
    for i in range(0, num_new, 3):
        decoded = p.decode(p.q[i : i + 1], [slots[: prefix + i + 1]])
        assert torch.equal(decoded[0], causal[i])
        path = torch.cat([slots[:prefix], slots[prefix:][tree[i]]])
        assert torch.equal(p.decode(p.q[i : i + 1], [path])[0], verified[i])
    chain = torch.ones(num_new, num_new, dtype=torch.bool).tril()
    as_tree = p.extend(torch.cat([chain.flatten(), torch.ones(1, dtype=torch.bool)]))
    assert torch.equal(as_tree, causal)


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_threads_and_other_requests_change_no_bit(dtype):
    p = Paged([150, 61, 90], [150, 61, 1], dtype=dtype)
    expected = p.extend()
    torch.set_num_threads(2)
    assert torch.equal(p.extend(), expected)
    torch.set_num_threads(1)
    for first in (0, 1, 40, 149):
        count = min(30, 150 - first)
        part = Paged([first + count], [count], dtype=dtype)
        part.k, part.v, part.q = p.k, p.v, p.q[first : first + count]
        part.req_to_token, part.rows = p.req_to_token, p.rows[:1]
        assert torch.equal(part.extend(), expected[first : first + count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lens", [[], [1], [24, 0, 70], [33, 32]])
@pytest.mark.parametrize("heads, kv_heads, head_size", [(2, 2, 64), (4, 2, 80)])
def test_packed_attention_equals_its_twin(heads, kv_heads, head_size, lens, causal, dtype):
    total = sum(lens)
    qkv = torch.randn(total, heads + 2 * kv_heads, head_size).to(dtype)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    ends = torch.tensor([0, *lens]).cumsum(0).int()
    call = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": causal}
    call |= {"max_seqlen_q": 99, "max_seqlen_k": 99}
    got = ops.flash_attn_varlen_func(q, k, v, **call)
    close(got, twins.flash_attn_varlen_func(q, k, v, **call))
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        offsets = torch.tensor([0, end - begin]).int()
        call |= {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
        part = slice(begin, end)
        assert torch.equal(ops.flash_attn_varlen_func(q[part], k[part], v[part], **call), got[part])


def test_empty_batches_do_nothing():
    p = Paged([], [])
    assert p.extend().shape == (0, 4, 64)
    assert p.decode().shape == (0, 4, 64)


def test_errors_name_the_wrong_value():
    p = Paged([8], [4])
    p.req_to_token[p.rows[0], 3] = 2**20
    with pytest.raises(RuntimeError, match=rf"slots below {p.num_slots}, got {2**20}"):
        p.extend()
    p = Paged([8], [4])
    with pytest.raises(RuntimeError, match="at least 16 elements, got 9"):
        p.extend(torch.ones(9, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="expected a bool tree_mask, got Byte"):
        p.extend(torch.ones(16, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"one query a request \(1\), got 4"):
        p.decode()
    p.seq_lens = [900]
    with pytest.raises(RuntimeError, match=r"within req_to_token \[3, 48\], got \d and 900"):
        p.extend()
    p = Paged([8], [4], num_heads=3)
    with pytest.raises(RuntimeError, match="KH dividing H, got"):
        p.extend()
    p = Paged([8], [4])
    p.k, p.v = p.k.half(), p.v.half()
    with pytest.raises(RuntimeError, match=r"in the dtype of q \(Float\), got Half"):
        p.extend()
