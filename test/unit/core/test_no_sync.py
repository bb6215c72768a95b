"""No function of the round looks at its tensors' values: tensors on the meta device have none."""

import dataclasses

import pytest
import torch
from sglang.srt.speculative.glance.core.accept import shorten, walk
from sglang.srt.speculative.glance.core.masks import fill_full_mask, full_mask, qlen_mask
from sglang.srt.speculative.glance.core.penalties import (
    Penalties,
    count_tokens,
    forbid_stops,
    node_paths,
    penalise,
)
from sglang.srt.speculative.glance.core.positions import (
    block_positions,
    mrope_positions,
    tree_positions,
)
from sglang.srt.speculative.glance.core.tree import ancestor_mask, build_tree, tree_links


def on_meta(*shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device="meta")


def play_a_round(walk=walk):
    bs, block, k, budget = 2, 16, 8, 32
    tree = build_tree(
        on_meta(bs),
        on_meta(bs, block - 1, k),
        on_meta(bs, block - 1, k, dtype=torch.float32),
        budget,
    )
    ancestors = ancestor_mask(tree.parents, block - 1)
    tree_links(tree.parents)
    qlen_mask(ancestors)
    full_mask(ancestors, on_meta(bs), 100)
    fill_full_mask(ancestors, on_meta(bs), on_meta(9000, dtype=torch.bool))
    mrope_positions(tree_positions(on_meta(bs), tree.depths), on_meta(bs))
    block_positions(on_meta(bs), block)
    floats = [on_meta(bs, dtype=torch.float32) for _ in range(3)]
    penalties = Penalties(*floats, on_meta(bs), on_meta(bs, 2))
    logits = on_meta(bs, budget, 50, dtype=torch.float32)
    paths = node_paths(tree.tokens, tree.parents, block - 1)
    penalise(logits, paths, count_tokens(on_meta(bs, 9), 50), penalties)
    forbid_stops(logits, on_meta(bs, budget), penalties)
    accepted = shorten(walk(tree.tokens, tree.parents, on_meta(bs, budget), block - 1), on_meta(bs))
    assert accepted.committed.shape == (bs, block)


def test_a_round_never_reads_a_value():
    play_a_round()


def reads_a_length(*given):
    accepted = walk(*given)
    longest = int(accepted.accept_lens.max())
    return dataclasses.replace(accepted, committed=accepted.committed[:, :longest])


def picks_by_mask(*given):
    accepted = walk(*given)
    committed = accepted.committed[accepted.committed >= 0]
    return dataclasses.replace(accepted, committed=committed)


def copies_back(*given):
    return dataclasses.replace(accepted := walk(*given), bonus=accepted.bonus.cpu())


@pytest.mark.parametrize("planted", [reads_a_length, picks_by_mask, copies_back])
def test_a_planted_read_is_found(planted):
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        play_a_round(planted)
