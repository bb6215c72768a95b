import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.speculative.glance.core.positions import (
    block_positions,
    mrope_positions,
    tree_positions,
)

requests = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5000, 5000)), max_size=5)


@settings(deadline=None)
@given(requests, st.integers(1, 9), st.sampled_from([torch.int32, torch.int64]))
def test_positions_follow_depth_and_each_requests_delta(requests, width, dtype):
    prefix_lens = torch.tensor([length for length, _ in requests], dtype=dtype)
    deltas = torch.tensor([delta for _, delta in requests], dtype=torch.int64)
    depths = torch.arange(width).flip(0).expand(len(requests), width)
    positions = tree_positions(prefix_lens, depths)
    rotary = mrope_positions(positions, deltas)
    assert positions.dtype == rotary.dtype == torch.int64
    assert rotary.shape == (3, len(requests) * width)
    assert rotary.is_contiguous()
    row = 0
    for length, delta in requests:
        for depth in reversed(range(width)):
            assert positions[row] == length + depth
            assert rotary[:, row].tolist() == [length + depth + delta] * 3
            row += 1


def test_root_stands_right_after_the_prefix_in_both_models():
    prefix_lens = torch.tensor([0, 7])
    depths = torch.tensor([[0, 1, 1], [0, 1, 2]])
    assert tree_positions(prefix_lens, depths).tolist() == [0, 1, 1, 7, 8, 9]
    assert block_positions(prefix_lens, 3).tolist() == [0, 1, 2, 7, 8, 9]


def test_one_delta_for_a_whole_batch_is_refused():
    with pytest.raises(ValueError, match="deltas"):
        mrope_positions(torch.arange(6), torch.tensor(3))
    with pytest.raises(ValueError, match="positions"):
        mrope_positions(torch.arange(6).view(2, 3), torch.tensor([3, 4]))
