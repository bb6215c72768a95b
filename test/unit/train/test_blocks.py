"""Training blocks against plain loops over places."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.glance.train.blocks import Sampler, TappedRow, collate, spread

MASK, BLOCK, DECAY = 39, 4, 3.0


def sampler(anchors: int = 4, past_block: float = 0.5) -> Sampler:
    return Sampler(BLOCK, MASK, anchors, DECAY, past_block)


def expected_places(row: TappedRow, root: int, shown: int, width: int) -> list[tuple]:
    """(input, position, context tokens seen, label or None, weight) of a block, place by place."""
    places = []
    for offset in range(width):
        position, masked = root + offset, offset - shown
        if masked >= BLOCK:
            places.append(None)
            continue
        exists = position < len(row.ids)
        token = int(row.ids[position]) if masked <= 0 else MASK
        label = int(row.ids[position]) if masked > 0 and exists else None
        weight = math.exp(-(masked - 1) / DECAY) if label is not None else 0.0
        places.append((token, position, root, label, weight))
    return places


@pytest.mark.parametrize(("root", "shown"), [(5, 0), (5, 2), (9, 0), (9, 1), (10, 0)])
def test_a_block_place_by_place(make_row: Callable, root: int, shown: int) -> None:
    row, width = make_row(12, 5), BLOCK if shown == 0 else 2 * BLOCK - 1
    blocks = sampler().lay(row.ids, torch.tensor([root]), torch.tensor([shown]), width)
    for place, wanted in enumerate(expected_places(row, root, shown, width)):
        got = [column[place].item() for column in blocks]
        if wanted is None:
            assert (got[3], got[5]) == (-1, 0.0)
            continue
        assert got[:3] == list(wanted[:3])
        assert got[3] == 0
        assert got[5] == pytest.approx(wanted[4])
        if wanted[3] is not None:
            assert got[4] == wanted[3]


@given(st.integers(2, 40), st.integers(0, 2**30))
def test_every_draw_fits_its_answer(length: int, seed: int) -> None:
    """Roots lie in the answer, what is shown is followed by something to learn, sizes are fixed."""
    row = TappedRow(torch.arange(3 + length), 3, torch.zeros(2 + length, 1))
    blocks = sampler(anchors=6).draw(row, torch.Generator().manual_seed(seed))
    assert {len(column) for column in blocks} == {3 * BLOCK + 3 * (2 * BLOCK - 1)}
    learns = blocks.weights > 0
    assert learns.any()
    assert torch.equal(blocks.labels[learns], blocks.positions[learns])  # ids are their own index
    assert (blocks.input_ids[learns] == MASK).all()
    for number in blocks.block_ids.unique().tolist():
        inside = blocks.block_ids == number
        if number >= 0:
            root = int(blocks.positions[inside].min())
            assert 3 <= root <= len(row.ids) - 2
            assert (blocks.context_lens[inside] == root).all()
            assert (learns & inside).any()
        else:
            assert not (learns & inside).any()


@given(st.integers(1, 50), st.integers(0, 20), st.integers(0, 2**30))
def test_spread_takes_distinct_numbers_from_all_parts(span: int, count: int, seed: int) -> None:
    got = spread(span, count, torch.Generator().manual_seed(seed)).tolist()
    assert got == sorted(set(got))
    assert all(0 <= number < span for number in got)
    assert len(got) == min(span, count)
    if span > count > 0:
        assert max(b - a for a, b in zip([-1, *got], [*got, span])) <= 2 * span / count + 1


def test_who_sees_whom(make_row: Callable) -> None:
    rows = [make_row(12, 5), make_row(9, 4, seed=1)]
    blocks = [sampler().draw(row, torch.Generator().manual_seed(3)) for row in rows]
    batch = collate(rows, blocks)
    length = batch.taps.shape[1]
    assert length == max(int(b.context_lens.max()) for b in blocks)
    for number, (row, own) in enumerate(zip(rows, blocks)):
        kept = min(length, len(row.taps))
        assert torch.equal(batch.taps[number, :kept], row.taps[:kept])
        for place in range(len(own.positions)):
            context = [t < own.context_lens[place] for t in range(length)]
            block = [own.block_ids[place] == other for other in own.block_ids]
            assert batch.mask[number, place].tolist() == context + block
    assert batch.mask.any(-1).all()  # a place that sees nothing would be NaN
