"""SGLang's trees: C++ against the twins, and the results against the drafted trees."""

import itertools

import pytest
import sgl_kernel
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import twins
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

TOPK = 4


def drafted(steps: int) -> tuple[list[int], list[int]]:
    """An EAGLE draft: its parent_list, and the parent entry of each of its entries.

    Step 0 drafts TOPK entries below the root and keeps all of them. Each later step drafts TOPK
    entries below each kept entry, and keeps TOPK of the new entries.
    """
    table = [-1]
    parent_of = [-1] * TOPK
    kept = list(range(TOPK))
    for _ in range(1, steps):
        table += kept
        first = len(parent_of)
        parent_of += [parent for parent in kept for _ in range(TOPK)]
        fresh = torch.randperm(TOPK * TOPK)[:TOPK].sort().values
        kept = [first + int(i) for i in fresh]
    return table, parent_of


def selection(parent_of: list[int], count: int) -> list[int]:
    """A random selection of entries, ascending, that includes every selected entry's parent."""
    chosen: set[int] = set()
    while len(chosen) < count:
        open_entries = [
            e for e, p in enumerate(parent_of) if e not in chosen and (p == -1 or p in chosen)
        ]
        chosen.add(open_entries[int(torch.randint(0, len(open_entries), ()))])
    return sorted(chosen)


def build_outputs(build, table, selected, seq_lens, num_nodes):
    size = (len(seq_lens), num_nodes)
    mask = torch.ones(len(seq_lens) * num_nodes**2 + 5, dtype=torch.bool)  # a larger buffer
    positions = torch.empty(size[0] * num_nodes, dtype=torch.int64)
    links = torch.full((3, *size), -1, dtype=torch.int64)
    build(
        torch.tensor(table).view(size[0], -1),
        torch.tensor(selected, dtype=torch.int64).view(size[0], num_nodes - 1),
        torch.tensor(seq_lens), mask, positions, *links, TOPK, 3, num_nodes, 1,
    )  # fmt: skip
    return mask[:-5].view(*size, num_nodes), positions.view(size), links


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 16), st.integers(0, 2**30))
def test_build_equals_its_twin_and_the_drafted_tree(batch, steps, num_nodes, seed):
    torch.manual_seed(seed)
    num_nodes = min(num_nodes, TOPK + 1) if steps == 1 else num_nodes
    drafts = [drafted(steps) for _ in range(batch)]
    selected = [selection(parent_of, num_nodes - 1) for _, parent_of in drafts]
    seq_lens = torch.randint(0, 99, (batch,)).tolist()
    table = [table for table, _ in drafts]
    call = (table, selected, seq_lens, num_nodes)
    got = build_outputs(sgl_kernel.build_tree_kernel_efficient_cpu, *call)
    for a, b in zip(got, build_outputs(twins.build_tree_kernel_efficient_cpu, *call), strict=True):
        assert torch.equal(a, b)

    mask, positions, (number, child, sibling) = got
    assert torch.equal(number.flatten(), torch.arange(batch * num_nodes))
    for b, (_, parent_of) in enumerate(drafts):
        for node, entry in enumerate(selected[b], start=1):
            ancestors = {0, node}
            while parent_of[entry] != -1:
                entry = parent_of[entry]
                ancestors.add(1 + selected[b].index(entry))
            assert set(mask[b, node].nonzero().flatten().tolist()) == ancestors
            assert positions[b, node] == seq_lens[b] + len(ancestors) - 1
    rebuilt = torch.empty_like(positions), *(torch.empty_like(number) for _ in range(3))
    reconstruct_indices_from_tree_mask(
        mask.flatten(), torch.tensor(seq_lens), *rebuilt, batch, num_nodes
    )
    for a, b in zip(rebuilt, (positions, number, child, sibling), strict=True):
        assert torch.equal(a, b)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(1, 12), st.integers(0, 2**30))
def test_reconstruct_equals_its_twin(batch, num_nodes, seed):
    torch.manual_seed(seed)
    mask = torch.rand(batch * num_nodes**2) < 0.4
    seq_lens = torch.randint(0, 99, (batch,), dtype=torch.int32)
    outs = []
    for fn in (reconstruct_indices_from_tree_mask, twins.reconstruct_indices_from_tree_mask):
        out = [torch.full((batch * num_nodes,), 7) for _ in range(4)]
        fn(mask, seq_lens, *out, batch, num_nodes)
        outs.append(out)
    for a, b in zip(*outs, strict=True):
        assert torch.equal(a, b)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.integers(1, 14), st.integers(1, 6), st.integers(0, 2**30))
def test_verify_walks_as_its_twin(batch, num_nodes, max_len, seed):
    torch.manual_seed(seed)
    parents = [[-1] + [int(torch.randint(0, n, ())) for n in range(1, num_nodes)]] * batch
    mask = torch.eye(num_nodes, dtype=torch.bool).repeat(batch, 1, 1)
    for b in range(batch):
        for node in range(1, num_nodes):
            mask[b, node] |= mask[b, parents[b][node]]
    links = [torch.empty(batch, num_nodes, dtype=torch.int64) for _ in range(4)]
    reconstruct_indices_from_tree_mask(
        mask.flatten(), torch.zeros(batch, dtype=torch.int64), *links, batch, num_nodes
    )
    candidates = torch.randint(0, 3, (batch, num_nodes))
    target = torch.randint(0, 3, (batch, num_nodes))
    outs = []
    for fn in (sgl_kernel.verify_tree_greedy_cpu, twins.verify_tree_greedy_cpu):
        predicts = torch.full((batch * num_nodes,), -5, dtype=torch.int32)
        accepted = torch.full((batch, max_len), -1, dtype=torch.int32)
        counts = torch.full((batch,), -1, dtype=torch.int32)
        fn(
            predicts=predicts, accept_index=accepted, accept_token_num=counts,
            candidates=candidates, retrive_index=links[1], retrive_next_token=links[2],
            retrive_next_sibling=links[3], target_predict=target,
        )  # fmt: skip
        outs.append((predicts, accepted, counts))
    for a, b in zip(*outs, strict=True):
        assert torch.equal(a, b)
    _, accepted, counts = outs[0]
    for b in range(batch):
        walk = [int(n) - b * num_nodes for n in accepted[b, : counts[b] + 1]]
        assert walk[0] == 0
        for before, node in itertools.pairwise(walk):
            assert parents[b][node] == before and candidates[b, node] == target[b, before]


@pytest.mark.parametrize("library", [sgl_kernel, twins])
def test_nothing_leads_to_a_node_whose_parent_was_not_selected(library):
    """Entry 4 is a child of entry 0, and entry 8 of entry 1, which is not selected."""
    call = ([[-1, 0, 1, 2, 3]], [[0, 4, 8]], [5], 4)
    mask, positions, (_, child, sibling) = build_outputs(
        library.build_tree_kernel_efficient_cpu, *call
    )
    assert child.tolist() == [[1, 2, -1, -1]] and sibling.tolist() == [[-1] * 4]
    rows = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert mask.int().tolist() == [rows]
    assert positions.tolist() == [[5, 6, 7, 5]]


def test_errors_name_the_wrong_value():
    links = torch.full((3, 1, 3), -1)
    with pytest.raises(NotImplementedError, match=r"tree_mask_mode 1 \(N x N\), got 0"):
        sgl_kernel.build_tree_kernel_efficient_cpu(
            torch.zeros(1, 5), torch.zeros(1, 2), torch.tensor([5]),
            torch.ones(9, dtype=torch.bool), torch.zeros(3), *links, TOPK, 3, 3, 0,
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="expected a bool mask of 9.*got Float"):
        reconstruct_indices_from_tree_mask(
            torch.ones(9), torch.tensor([5]), torch.zeros(3), *links, 1, 3
        )
