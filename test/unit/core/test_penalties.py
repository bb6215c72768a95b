import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.speculative.glance.core.penalties import (
    Penalties,
    count_tokens,
    forbid_stops,
    node_paths,
    penalise,
    shift,
    shifts,
)

SETTINGS = {
    "none": (0.0, 0.0, 1.0),
    "frequency": (0.7, 0.0, 1.0),
    "negative frequency": (-0.9, 0.0, 1.0),
    "presence": (0.0, 1.1, 1.0),
    "repetition": (0.0, 0.0, 1.4),
    "repetition below 1": (0.0, 0.0, 0.6),
    "all": (0.5, -0.4, 1.3),
}


def penalties(rows, min_new_tokens=None, stop_ids=None):
    frequency, presence, repetition = torch.tensor(rows).T
    num = len(rows)
    return Penalties(
        frequency,
        presence,
        repetition,
        torch.zeros(num, dtype=torch.int64) if min_new_tokens is None else min_new_tokens,
        torch.zeros((num, 1), dtype=torch.int64) if stop_ids is None else stop_ids,
    )


def random_tree(rng, num_nodes, max_depth, vocab):
    """Parents before children, no deeper than `max_depth`; tokens repeat along a branch."""
    parents, depths = [-1], [0]
    for _ in range(1, num_nodes):
        parent = rng.choice([n for n, depth in enumerate(depths) if depth < max_depth])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return [rng.randrange(vocab) for _ in range(num_nodes)], parents


def upward(tokens, parents, node):
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path


def plain_row(logits, output, frequency, presence, repetition):
    """One row, penalised as a decoder that knows `output` would."""
    row = logits.clone()
    for token in set(output):
        value = row[token].item() - frequency * output.count(token) - presence
        row[token] = value * repetition if value < 0 else value / repetition
    return row


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_nodes=st.integers(1, 33),
    max_depth=st.integers(1, 9),
    vocab=st.integers(1, 12),
    length=st.integers(0, 20),
)
def test_every_node_equals_plain_decoding_of_its_path(seed, num_nodes, max_depth, vocab, length):
    rng = random.Random(seed)
    trees = [random_tree(rng, num_nodes, max_depth, vocab) for _ in SETTINGS]
    outputs = [[rng.randrange(vocab) for _ in range(rng.randint(0, length))] for _ in SETTINGS]
    logits = torch.randn((len(SETTINGS), num_nodes, vocab), generator=torch.manual_seed(seed)) * 3
    got = logits.clone()
    tokens, parents = (torch.tensor(x) for x in zip(*trees))
    ids = torch.tensor([[*output, *[-1] * (length - len(output))] for output in outputs])
    counts = count_tokens(ids.view(len(SETTINGS), -1), vocab)
    paths = node_paths(tokens, parents, max_depth)
    penalise(got, paths, counts, penalties(list(SETTINGS.values())))
    for request, setting in enumerate(SETTINGS.values()):
        for node in range(num_nodes):
            output = outputs[request] + upward(*trees[request], node)
            expected = plain_row(logits[request, node], output, *setting)
            torch.testing.assert_close(got[request, node], expected)
    assert torch.equal(got[0], logits[0])  # no penalty: not a bit changes


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), num_nodes=st.integers(1, 40), max_depth=st.integers(1, 9))
def test_paths_lead_to_the_root(seed, num_nodes, max_depth):
    tokens, parents = random_tree(random.Random(seed), num_nodes, max_depth, 99)
    (paths,) = node_paths(torch.tensor([tokens]), torch.tensor([parents]), max_depth)
    for node, path in enumerate(paths.tolist()):
        expected = upward(tokens, parents, node)
        assert path == expected + [-1] * (max_depth + 1 - len(expected))


def test_a_token_drafted_twice_in_one_branch_counts_twice_there_and_not_beside_it():
    # root 5; children 7 and 8; below 7 again 7, below 8 a 9
    tokens, parents = torch.tensor([[5, 7, 8, 7, 9]]), torch.tensor([[-1, 0, 0, 1, 2]])
    logits = torch.zeros((1, 5, 10))
    counts = count_tokens(torch.tensor([[7, -1]]), 10)
    penalise(logits, node_paths(tokens, parents, 2), counts, penalties([(1.0, 0.0, 1.0)]))
    assert logits[0, :, 7].tolist() == [-1, -2, -1, -3, -1]
    assert logits[0, :, 5].tolist() == [-1] * 5
    assert logits[0, :, 9].tolist() == [0, 0, 0, 0, -1]


def test_additive_penalties_come_before_scaling():
    got = shift(torch.tensor([[1.0]]), *shifts(torch.tensor([[1.0]]), penalties([(3.0, 0.0, 2.0)])))
    assert got.item() == -4.0  # not 1 / 2 - 3


def test_stops_are_ruled_out_until_enough_tokens_are_out():
    logits = torch.ones((2, 3, 6))
    num_outputs = torch.tensor([[1, 2, 3], [1, 2, 3]])
    least = torch.tensor([3, 0])
    stops = torch.tensor([[4, 5], [0, 0]])
    forbid_stops(logits, num_outputs, penalties([(0.0, 0.0, 1.0)] * 2, least, stops))
    ruled_out = torch.isneginf(logits)
    assert ruled_out[0].nonzero().tolist() == [[0, 4], [0, 5], [1, 4], [1, 5]]
    assert not ruled_out[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_minus_infinity_stays(dtype):
    logits = torch.full((1, 1, 3), float("-inf"), dtype=dtype)
    paths = torch.tensor([[[1]]])
    penalise(logits, paths, torch.ones((1, 3)), penalties([(-2.0, -2.0, 0.1)]))
    assert torch.isneginf(logits).all() and logits.dtype == dtype
