import random

import pytest
import torch
import tree_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.speculative.glance.core.accept import shorten, walk


def random_round(seed, bs=3, num_nodes=32, vocab=4):
    """A tree whose siblings may carry the same token: a small vocabulary makes long walks."""
    rng = random.Random(seed)
    parents = [[-1] + [rng.randrange(n) for n in range(1, num_nodes)] for _ in range(bs)]
    tokens, drawn = (
        [[rng.randrange(vocab) for _ in range(num_nodes)] for _ in range(bs)] for _ in range(2)
    )
    return torch.tensor(tokens), torch.tensor(parents), torch.tensor(drawn)


def check(accepted, tokens, parents, drawn, max_depth):
    for request in range(len(tokens)):
        path, committed = reference.walk(
            tokens[request].tolist(), parents[request].tolist(), drawn[request].tolist(), max_depth
        )
        padding = [-1] * (max_depth + 1 - len(path))
        assert accepted.accept_index[request].tolist() == path + padding
        assert accepted.committed[request].tolist() == committed + padding
        assert accepted.accept_lens[request].item() == len(path)
        assert accepted.bonus[request].item() == committed[-1]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_nodes=st.integers(1, 65),
    vocab=st.integers(1, 5),
    max_depth=st.integers(0, 20),
)
def test_equals_a_plain_walk(seed, num_nodes, vocab, max_depth):
    tokens, parents, drawn = random_round(seed, num_nodes=num_nodes, vocab=vocab)
    check(walk(tokens, parents, drawn, max_depth), tokens, parents, drawn, max_depth)


def test_first_of_two_equal_children_is_taken():
    tokens = torch.tensor([[9, 4, 4, 7]])
    parents = torch.tensor([[-1, 0, 0, 2]])
    accepted = walk(tokens, parents, torch.tensor([[4, 7, 7, 0]]), 3)
    assert accepted.accept_index.tolist() == [[0, 1, -1, -1]]
    assert accepted.committed.tolist() == [[4, 7, -1, -1]]


def test_nothing_agrees():
    tokens, parents, _ = random_round(0)
    accepted = walk(tokens, parents, torch.full_like(tokens, 77), 5)
    assert accepted.accept_lens.tolist() == [1, 1, 1]
    assert accepted.bonus.tolist() == [77, 77, 77]


def test_a_root_that_carries_its_own_draw_is_not_its_own_child():
    """The root's parent is -1: read as an index it would be the root, or the last node."""
    tokens, parents = torch.tensor([[3, 8]]), torch.tensor([[-1, 0]])
    accepted = walk(tokens, parents, torch.tensor([[3, 3]]), 2)
    assert accepted.accept_index.tolist() == [[0, -1, -1]]


def test_last_sibling_is_found():
    num_nodes = 64
    tokens = torch.arange(num_nodes)[None]
    parents = torch.zeros(1, num_nodes, dtype=torch.int64)
    parents[0, 0] = -1
    drawn = torch.full((1, num_nodes), num_nodes - 1)
    accepted = walk(tokens, parents, drawn, 15)
    assert accepted.accept_index[0, :3].tolist() == [0, num_nodes - 1, -1]


def test_shapes_that_differ_are_refused():
    tokens, parents, drawn = random_round(0)
    with pytest.raises(ValueError, match="one shape"):
        walk(tokens, parents, drawn[:, :-1], 3)


def test_empty_batch():
    empty = torch.empty((0, 8), dtype=torch.int64)
    assert walk(empty, empty, empty, 3).accept_index.shape == (0, 4)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), limits=st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_shortened_walk_is_a_walk_of_that_depth(seed, limits):
    tokens, parents, drawn = random_round(seed, vocab=2)
    cut = shorten(walk(tokens, parents, drawn, 6), torch.tensor(limits))
    for request, limit in enumerate(limits):
        row = slice(request, request + 1)
        alone = walk(tokens[row], parents[row], drawn[row], limit)
        assert cut.accept_lens[row].equal(alone.accept_lens)
        assert cut.bonus[row].equal(alone.bonus)
        for name in ("accept_index", "committed"):
            mine, its = getattr(cut, name)[request].tolist(), getattr(alone, name)[0].tolist()
            assert mine == its + [-1] * (6 - limit)
