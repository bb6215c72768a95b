"""Slot bookkeeping: the ops and the twins against plain loops."""

import pytest
import sgl_kernel
import torch
from sgl_kernel import twins

POOL_LEN = 40


def pool(rows: int = 6) -> torch.Tensor:
    return torch.randperm(rows * POOL_LEN).view(rows, POOL_LEN).int()


@pytest.mark.parametrize("module", [sgl_kernel, twins], ids=["ops", "twins"])
@pytest.mark.parametrize("offset_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("spans", [[], [(3, 8)], [(0, 40), (7, 7), (12, 13)]])
def test_spans_are_gathered_and_scattered(spans, offset_dtype, module):
    rows = torch.randperm(6)[: len(spans)]
    starts = torch.tensor([s for s, _ in spans], dtype=offset_dtype)
    ends = torch.tensor([e for _, e in spans], dtype=offset_dtype)
    total = int((ends - starts).sum())
    table = pool()
    expected = [
        int(table[r, i]) for r, (s, e) in zip(rows, spans, strict=True) for i in range(s, e)
    ]
    out = torch.full((total + 3,), -1)
    module.assign_extend_cache_locs_cpu(rows, table, starts, ends, out, POOL_LEN)
    assert out.tolist() == expected + [-1] * 3

    slots = torch.randint(0, 999, (total,))
    written = table.clone()
    module.assign_req_to_token_pool_cpu(rows, written, starts, ends, slots, POOL_LEN)
    gathered = torch.empty(total, dtype=torch.int64)
    module.assign_extend_cache_locs_cpu(rows, written, starts, ends, gathered, POOL_LEN)
    assert torch.equal(gathered, slots)
    assert int((written != table).sum()) <= total


def test_draft_slots_lie_behind_the_sequence():
    table, rows, lens = pool(), torch.tensor([4, 1]), torch.tensor([9, 0])
    topk, steps = 3, 4
    out = torch.empty(2 * topk * steps, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, table, lens, out, POOL_LEN, topk, steps)
    assert out.tolist() == table[4, 9:21].tolist() + table[1, :12].tolist()

    metadata = sgl_kernel.build_draft_decode_metadata_cpu(table, rows, lens, topk, steps, POOL_LEN)
    assert metadata.dtype == torch.int32 and metadata.shape == (6, POOL_LEN)
    for b, (row, length) in enumerate([(4, 9), (1, 0)]):
        for candidate in range(topk):
            draft_slots = table[row, length + candidate * steps :][:steps].tolist()
            got = metadata[b * topk + candidate]
            assert got[: length + steps].tolist() == table[row, :length].tolist() + draft_slots


def test_bonus_tokens_and_accepted_slots():
    tokens = torch.arange(12, dtype=torch.int32)
    bonus = torch.empty(3, dtype=torch.int64)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor([1, 4, 2]), bonus, 4)
    assert bonus.tolist() == [0, 7, 9]

    out = torch.full((5,), -1)
    sgl_kernel.fill_accept_out_cache_loc_cpu(
        torch.tensor([0, -1, 5, -1], dtype=torch.int32), torch.arange(10, 20), out
    )
    assert out.tolist() == [10, 15, -1, -1, -1]


@pytest.mark.parametrize("select", [None, [0, 3]])
def test_input_ids_rotate(select):
    ids = torch.arange(10, 16)
    select_index = None if select is None else torch.tensor(select)
    sgl_kernel.rotate_input_ids_cpu(
        ids, torch.tensor([0, 2]), torch.tensor([2, 4]), torch.tensor([[7], [8]]), select_index
    )
    assert ids.tolist() == ([11, 7, 13, 14, 15, 8] if select is None else [7, 11, 13, 8, 15, 15])


def test_a_span_beyond_the_table_is_refused():
    rows, table = torch.tensor([1]), pool()
    out = torch.empty(4, dtype=torch.int64)
    for start, end in [(38, 42), (0, 5), (3, 2)]:
        with pytest.raises(RuntimeError, match=rf"row 1 columns {start} to {end} after 0 slots"):
            sgl_kernel.assign_extend_cache_locs_cpu(
                rows, table, torch.tensor([start]), torch.tensor([end]), out, POOL_LEN
            )
