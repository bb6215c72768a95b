import itertools
import random

import pytest
import torch
import tree_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.core.tree import (
    LOGPROB_FLOOR,
    MAX_OFFSETS,
    SEARCH_SPAN,
    STEPS_PER_NAT,
    ancestor_mask,
    build_tree,
    check_shape,
    level_widths,
    max_nodes,
    power_of_2,
    tree_links,
)

BUDGETS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65]


def marginals(seed, bs=1, block=16, k=8, sharpness=3.0, vocab=50):
    """Root tokens, candidate ids and log-probabilities as a head would give them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, block - 1, vocab, generator=generator) * sharpness
    logprobs, ids = torch.log_softmax(logits, -1).topk(k)
    return torch.randint(vocab, (bs,), generator=generator), ids, logprobs


def rows(tree, request):
    return tuple(part[request].tolist() for part in (tree.tokens, tree.parents, tree.depths))


def expected_rows(order, root_tokens, ids, request):
    return reference.tree_rows(order, root_tokens[request].item(), ids[request].tolist())


def tied(logprobs, seed):
    """Coarse log-probabilities, so that many prefixes tie."""
    return -torch.randint(
        0, 4, logprobs.shape, generator=torch.Generator().manual_seed(seed)
    ).float()


def with_bad_values(logprobs, seed):
    generator = torch.Generator().manual_seed(seed)
    bad = torch.tensor([-torch.inf, torch.nan, torch.inf, 1e-7])
    chosen = bad[torch.randint(4, logprobs.shape, generator=generator)]
    return torch.where(torch.rand(logprobs.shape, generator=generator) < 0.3, chosen, logprobs)


@pytest.mark.parametrize("damage", [lambda x, _: x, tied, with_bad_values])
def test_equals_sorting_all_prefixes(damage):
    rng = random.Random(0)
    for seed in range(120):
        block, k = rng.randint(2, 5), rng.randint(1, 4)
        budget = rng.randint(1, min(64, max_nodes(block, k)))
        root_tokens, ids, logprobs = marginals(seed, bs=2, block=block, k=k)
        logprobs = damage(logprobs, seed)
        tree = build_tree(root_tokens, ids, logprobs, budget)
        for request in range(2):
            order = reference.exhaustive_tree(reference.edges_of(logprobs[request]), budget)
            assert rows(tree, request) == expected_rows(order, root_tokens, ids, request)


def test_the_two_oracles_agree():
    for seed in range(40):
        edges = reference.edges_of(tied(marginals(seed, block=5, k=3)[2], seed)[0])
        assert reference.exhaustive_tree(edges, 30) == reference.heap_tree(edges, 30)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("sharpness", [0.01, 1.0, 6.0])
def test_equals_best_first_search_at_real_sizes(budget, sharpness):
    root_tokens, ids, logprobs = marginals(budget, bs=3, sharpness=sharpness)
    logprobs[1] = logprobs[1].round()
    tree = build_tree(root_tokens, ids, logprobs, budget)
    for request in range(3):
        order = reference.heap_tree(reference.edges_of(logprobs[request]), budget)
        assert rows(tree, request) == expected_rows(order, root_tokens, ids, request)


def test_unordered_candidates_give_the_same_nodes():
    root_tokens, ids, logprobs = marginals(5)
    shuffle = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    tree = build_tree(root_tokens, ids, logprobs, 32)
    shuffled = build_tree(root_tokens, ids[..., shuffle], logprobs[..., shuffle], 32)
    assert rows(tree, 0) == rows(shuffled, 0)


def test_scores_are_cumulative_logprobs():
    root_tokens, ids, logprobs = marginals(3, bs=2)
    tree = build_tree(root_tokens, ids, logprobs, 64)
    for request in range(2):
        tokens, parents, depths = rows(tree, request)
        for node in range(64):
            path = reference.ancestors_or_self(parents, node)[:-1]
            total = 0.0
            for step in path:
                rank = ids[request, depths[step] - 1].tolist().index(tokens[step])
                total += logprobs[request, depths[step] - 1, rank].double().item()
            assert tree.scores[request, node].item() == pytest.approx(total, abs=1e-5)


def test_smaller_budget_is_the_front_of_a_larger_one():
    root_tokens, ids, logprobs = marginals(9)
    largest = build_tree(root_tokens, ids, tied(logprobs, 9), 65)
    for budget in BUDGETS:
        tree = build_tree(root_tokens, ids, tied(logprobs, 9), budget)
        for part, whole in zip(rows(tree, 0), rows(largest, 0)):
            assert part == whole[:budget]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    block=st.integers(1, 17),
    k=st.integers(1, 9),
    budget=st.integers(1, 80),
    sharpness=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
)
def test_tree_is_well_formed(seed, block, k, budget, sharpness):
    budget = min(budget, max_nodes(block, k))
    root_tokens, ids, logprobs = marginals(seed, bs=2, block=block, k=k, sharpness=sharpness)
    tree = build_tree(root_tokens, ids, logprobs, budget)
    assert tree.tokens.shape == tree.parents.shape == tree.depths.shape == (2, budget)
    assert torch.equal(tree.tokens[:, 0], root_tokens)
    assert (tree.scores.diff(dim=1) <= 0).all()
    for request in range(2):
        tokens, parents, depths = rows(tree, request)
        assert (parents[0], depths[0]) == (-1, 0)
        for node in range(1, budget):
            assert 0 <= parents[node] < node  # kept, and before its child
            assert depths[node] == depths[parents[node]] + 1 < block
            assert tokens[node] in ids[request, depths[node] - 1].tolist()
        assert len(set(zip(parents, tokens))) == budget


def test_one_candidate_gives_the_chain():
    root_tokens, ids, logprobs = marginals(2, bs=3, k=1)
    for budget in (1, 2, 9, 16):
        tree = build_tree(root_tokens, ids, logprobs, budget)
        chain = torch.cat([root_tokens[:, None], ids[:, :, 0]], 1)[:, :budget]
        assert torch.equal(tree.tokens, chain)
        assert tree.parents.tolist() == [list(range(-1, budget - 1))] * 3
        assert tree.depths.tolist() == [list(range(budget))] * 3


def test_floor_ties_unlikely_with_impossible():
    logprobs = torch.tensor([[[0.0, LOGPROB_FLOOR - 1.0, -torch.inf, torch.nan]]])
    ids = torch.tensor([[[5, 6, 7, 8]]])
    tree = build_tree(torch.tensor([1]), ids, logprobs, 5)
    assert tree.tokens.tolist() == [[1, 5, 6, 7, 8]]
    assert tree.scores.tolist() == [[0.0, 0.0] + [LOGPROB_FLOOR] * 3]


@pytest.mark.parametrize("budget", [16, 32, 64])
def test_tree_accepts_at_least_what_the_chain_does(budget):
    """A tree of at least B nodes need not hold the whole chain: compare in the mean, and exactly
    on the part of the chain that the tree holds."""
    bs, block = 64, 16
    root_tokens, ids, logprobs = marginals(7, bs=bs, sharpness=4.0)
    chain = build_tree(
        root_tokens, ids[..., :1].contiguous(), logprobs[..., :1].contiguous(), block
    )
    tree = build_tree(root_tokens, ids, logprobs, budget)
    truth = drawn_answers(logprobs, ids, seed=budget)
    lens = {}
    for name, drafted in (("chain", chain), ("tree", tree)):
        target_tokens = truth.gather(1, drafted.depths)
        lens[name] = walk(drafted.tokens, drafted.parents, target_tokens, block - 1).accept_lens
    on_spine = ancestor_mask(tree.parents)
    spine_tokens = chain.tokens.gather(1, tree.depths)
    is_spine = ~(on_spine & (tree.tokens != spine_tokens)[:, None]).any(-1)
    spine_len = is_spine.sum(1)
    assert (lens["tree"] >= torch.minimum(lens["chain"], spine_len)).all()
    assert lens["tree"].double().mean() > lens["chain"].double().mean()


def drawn_answers(logprobs, ids, seed):
    """[bs, B] the token that the target would say after each depth, drawn from the marginals."""
    torch.manual_seed(seed)
    picks = torch.distributions.Categorical(logits=logprobs).sample()
    answers = ids.gather(2, picks[..., None]).squeeze(2)
    return torch.cat([answers, answers[:, -1:]], dim=1)


def test_full_width_tree_accepts_every_path_of_the_chain():
    root_tokens, ids, logprobs = marginals(4, bs=8, block=4, k=3)
    tree = build_tree(root_tokens, ids, logprobs, max_nodes(4, 3))
    truth = drawn_answers(logprobs, ids, seed=0)
    accepted = walk(tree.tokens, tree.parents, truth.gather(1, tree.depths), 3)
    assert accepted.accept_lens.tolist() == [4] * 8


@pytest.mark.parametrize(
    "block, k, budget, named",
    [
        (16, 1, 17, "budget"),
        (16, 8, 0, "budget"),
        (2, 8, 10, "budget"),
        (16, 0, 8, "candidates"),
        (0, 8, 1, "block"),
        (66, 8, 32, "block"),
        (16, 4096, 64, "candidates"),
        (17, 16, 1024, "budget"),
        (17, 32, 512, "budget"),
        (65, 8, 512, "budget"),
    ],
)
def test_impossible_shapes_are_refused(block, k, budget, named):
    with pytest.raises(ValueError, match=named) as refusal:
        check_shape(block, k, budget)
    assert str({"budget": budget, "block": block, "candidates": k}[named]) in str(refusal.value)


def test_a_shape_that_starts_can_be_searched_by_the_kernel():
    """The largest index of a shape that is let in stays below the span of the kernel's keys, and
    with it the lowest score above the mark of a place that is taken."""
    lowest = -MAX_OFFSETS * int(-LOGPROB_FLOOR) * STEPS_PER_NAT * SEARCH_SPAN - SEARCH_SPAN
    assert lowest > -(1 << 63)
    for block, k in itertools.product((2, 16, 33, 65), (1, 3, 8, 16, 31)):
        for budget in (31, 128, 129, 256, 512, 513):
            if (
                budget <= max_nodes(block, k)
                and block * power_of_2(budget) * power_of_2(k) > SEARCH_SPAN
            ):
                with pytest.raises(ValueError, match=f"budget {budget}"):
                    check_shape(block, k, budget)


def test_powers_of_two():
    assert [power_of_2(n) for n in (1, 2, 3, 8, 9, 64)] == [1, 2, 4, 8, 16, 64]


def test_max_nodes():
    assert [max_nodes(16, 1), max_nodes(1, 8), max_nodes(3, 2), max_nodes(4, 3)] == [16, 1, 7, 40]


@pytest.mark.parametrize("block, k, budget", [(3, 2, 7), (4, 3, 40), (16, 1, 16), (5, 8, 30)])
def test_widths_hold_the_tree_and_no_more_than_the_level(block, k, budget):
    widths = level_widths(block, k, budget)
    assert sum(widths) >= budget
    assert all(width <= k**depth for depth, width in enumerate(widths))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda r, i, p: (r, i, p[:, :, :-1]), "one shape"),
        (lambda r, i, p: (r[:1], i, p), "root_tokens"),
        (lambda r, i, p: (r, i, p.double()), "dtypes"),
        (lambda r, i, p: (r, i.int(), p), "dtypes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        build_tree(*change(*marginals(0, bs=2)), budget=8)


def test_empty_batch():
    root_tokens, ids, logprobs = marginals(0, bs=2)
    tree = build_tree(root_tokens[:0], ids[:0], logprobs[:0], 8)
    assert tree.tokens.shape == (0, 8)
    assert ancestor_mask(tree.parents).shape == (0, 8, 8)
    assert all(link.shape == (0, 8) for link in tree_links(tree.parents))


def random_parents(rng, num_nodes):
    return [-1] + [rng.randrange(node) for node in range(1, num_nodes)]


def depth_of(parents):
    return max(len(reference.ancestors_or_self(parents, n)) for n in range(len(parents))) - 1


def test_links_and_mask_of_500_random_trees():
    rng = random.Random(1)
    for trial in range(500):
        num_nodes = 1 + trial % 64
        batch = [random_parents(rng, num_nodes) for _ in range(2)]
        parents = torch.tensor(batch)
        index, child, sibling = tree_links(parents)
        assert index.flatten().tolist() == list(range(2 * num_nodes))
        mask = ancestor_mask(parents)
        bounded = ancestor_mask(parents, max(depth_of(p) for p in batch))
        assert torch.equal(mask, bounded)
        for request, single in enumerate(batch):
            assert (child[request].tolist(), sibling[request].tolist()) == reference.links(single)
            for node in range(num_nodes):
                seen = mask[request, node].nonzero().flatten().tolist()
                assert seen == sorted(reference.ancestors_or_self(single, node))


def test_links_agree_with_sgl_kernel():
    """`sgl_kernel` rebuilds links from the mask alone: an implementation that is not ours to
    share a mistake with."""
    speculative = pytest.importorskip(
        "sgl_kernel.speculative",
        reason="sgl-kernel/ is not installed",
        exc_type=ModuleNotFoundError,
    )
    if not hasattr(speculative, "reconstruct_indices_from_tree_mask"):
        pytest.skip("the installed sgl_kernel has no reconstruct_indices_from_tree_mask")
    rng = random.Random(2)
    for num_nodes in (1, 2, 17, 64):
        parents = torch.tensor([random_parents(rng, num_nodes) for _ in range(3)])
        prefix_lens = torch.tensor([5, 0, 900])
        rebuilt = [torch.full((3 * num_nodes,), -1) for _ in range(4)]
        speculative.reconstruct_indices_from_tree_mask(
            ancestor_mask(parents).flatten(), prefix_lens, *rebuilt, 3, num_nodes
        )
        for ours, theirs in zip(tree_links(parents), rebuilt[1:]):
            assert torch.equal(ours.flatten(), theirs.flatten())
