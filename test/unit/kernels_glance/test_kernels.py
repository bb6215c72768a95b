"""Every kernel against its twin in core/: the results are equal bit for bit."""

import random

import pytest
import torch
from sglang.srt.speculative.glance.core import accept as accept_twin
from sglang.srt.speculative.glance.core import masks as masks_twin
from sglang.srt.speculative.glance.core import tree as tree_twin
from sglang.srt.speculative.glance.kernels import triton_accept as accept
from sglang.srt.speculative.glance.kernels import triton_masks as masks
from sglang.srt.speculative.glance.kernels import triton_tree as tree
from sglang.srt.speculative.glance.kernels.select import ops_for, warm


def marginals(seed, device, bs, block, k, rounded=False):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, block - 1, 4 * k, generator=generator) * 3
    logprobs, ids = torch.log_softmax(logits, -1).topk(k)
    logprobs = logprobs.round() if rounded else logprobs
    root_tokens = torch.randint(4 * k, (bs,), generator=generator)
    return root_tokens.to(device), ids.to(device), logprobs.to(device)


def random_parents(seed, device, bs, num_nodes):
    rng = random.Random(seed)
    rows = [[-1] + [rng.randrange(n) for n in range(1, num_nodes)] for _ in range(bs)]
    return torch.tensor(rows, dtype=torch.int64).view(bs, num_nodes).to(device)


def assert_same(ours, twins):
    for name in twins.__dataclass_fields__:
        value, expected = getattr(ours, name), getattr(twins, name)
        assert value.dtype == expected.dtype
        assert torch.equal(value, expected), name


SHAPES = [
    # bs, block, k, budget
    (1, 1, 3, 1),
    (2, 2, 5, 6),
    (1, 4, 3, 40),
    (2, 16, 1, 16),
    (2, 16, 8, 2),
    (1, 16, 8, 17),
    (2, 16, 8, 32),
    (1, 16, 8, 65),
    (3, 9, 6, 33),
]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("bs, block, k, budget", SHAPES)
def test_build_tree(device, bs, block, k, budget, rounded):
    arguments = *marginals(budget, device, bs, block, k, rounded), budget
    assert_same(tree.build_tree(*arguments), tree_twin.build_tree(*arguments))


def test_build_tree_with_values_that_are_not_logprobs(device):
    bad = torch.tensor([-torch.inf, torch.nan, torch.inf, 1e-7, -5000.0, -1e-12], device=device)
    for seed in range(2):
        root_tokens, ids, logprobs = marginals(seed, device, 2, 5, 4)
        generator = torch.Generator().manual_seed(seed)
        where = torch.rand(logprobs.shape, generator=generator) < 0.4
        chosen = bad[torch.randint(len(bad), logprobs.shape, generator=generator)]
        damaged = torch.where(where.to(device), chosen.to(device), logprobs)
        arguments = root_tokens, ids, damaged, 24
        assert_same(tree.build_tree(*arguments), tree_twin.build_tree(*arguments))


def test_build_tree_of_strided_arguments(device):
    root_tokens, ids, logprobs = marginals(1, device, 2, 6, 8)
    strided = root_tokens, ids[..., ::2], logprobs[..., ::2], 12
    dense = root_tokens, ids[..., ::2].contiguous(), logprobs[..., ::2].contiguous(), 12
    assert_same(tree.build_tree(*strided), tree_twin.build_tree(*dense))


# Some of the largest shapes allowed: the most offsets, and keys whose index uses all of its bits.
EXTREMES = [
    # block, k, budget
    (65, 1, 65),
    (64, 32, 128),
    (16, 32, 512),
    (65, 16, 128),
    (9, 64, 256),
]


@pytest.mark.parametrize("values", ["spread", "at the floor", "tied"])
@pytest.mark.parametrize("block, k, budget", EXTREMES)
def test_the_largest_shapes(device, block, k, budget, values):
    """Log-probabilities at the floor over 64 offsets give the lowest score that a key can hold."""
    root_tokens, ids, logprobs = marginals(1, device, 1, block, k)
    if values != "spread":
        logprobs = torch.full_like(logprobs, -torch.inf if values == "at the floor" else -0.5)
    assert_same(
        tree.build_tree(root_tokens, ids, logprobs, budget),
        tree_twin.build_tree(root_tokens, ids, logprobs, budget),
    )


@pytest.mark.parametrize("block, k, budget", [(33, 8, 2048), (17, 16, 1024), (17, 32, 512)])
def test_a_tree_too_large_for_the_kernel_is_refused_by_the_shape(device, block, k, budget):
    with pytest.raises(ValueError, match=f"budget {budget}"):
        tree_twin.check_shape(block, k, budget)
    with pytest.raises(ValueError, match=f"budget {budget}"):
        tree.build_tree(*marginals(0, device, 1, block, k), budget=budget)


@pytest.mark.parametrize("bs, num_nodes", [(1, 1), (2, 2), (3, 17), (1, 33), (0, 8)])
def test_links_and_ancestors(device, bs, num_nodes):
    parents = random_parents(num_nodes, device, bs, num_nodes)
    for ours, twin in zip(tree.tree_links(parents), tree_twin.tree_links(parents), strict=True):
        assert ours.dtype == twin.dtype
        assert torch.equal(ours, twin)
    assert torch.equal(tree.ancestor_mask(parents), tree_twin.ancestor_mask(parents))


def test_ancestors_down_to_a_known_depth(device):
    arguments = *marginals(3, device, 2, 6, 4), 32
    parents = tree_twin.build_tree(*arguments).parents
    assert torch.equal(tree.ancestor_mask(parents, 5), tree_twin.ancestor_mask(parents))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("prefix_lens", [[0], [5, 0, 37], [1, 2], []])
def test_fill_full_mask(device, prefix_lens, dtype, monkeypatch):
    monkeypatch.setattr(masks, "SHARES", 2)  # the interpreter runs all programs in turn
    num_nodes = 9
    parents = random_parents(4, device, len(prefix_lens), num_nodes)
    ancestors = tree_twin.ancestor_mask(parents)
    lens = torch.tensor(prefix_lens, dtype=torch.int64, device=device)
    numel = masks_twin.full_mask_numel(len(prefix_lens), num_nodes, sum(prefix_lens))
    for before in (0, 1):
        ours, twin = (torch.full((numel + 7,), before, device=device).to(dtype) for _ in range(2))
        masks.fill_full_mask(ancestors, lens, ours)
        masks_twin.fill_full_mask(ancestors, lens, twin)
        assert torch.equal(ours, twin)
        assert (ours[numel:] == before).all()
    ours = masks.full_mask(ancestors, lens.int(), sum(prefix_lens))
    assert torch.equal(ours, masks_twin.full_mask(ancestors, lens, sum(prefix_lens)))


def test_a_mask_of_long_prefixes_and_many_requests(device, monkeypatch):
    """Every program sums several blocks of lengths and writes several blocks of columns."""
    monkeypatch.setattr(masks, "BLOCK", 16)
    monkeypatch.setattr(masks, "SHARES", 2)
    lens = torch.tensor([0, 5, 70, 15, 16, 17] * 3, device=device)
    ancestors = tree_twin.ancestor_mask(random_parents(4, device, len(lens), 2))
    ours = masks.full_mask(ancestors, lens, int(lens.sum()))
    assert torch.equal(ours, masks_twin.full_mask(ancestors, lens, int(lens.sum())))


class Launches:
    """Replaces a kernel and records the specialisations that Triton would compile.

    A specialisation is the constants, the kind of each integer (1, a multiple of 16, any other),
    and the dtype and alignment of each pointer.
    """

    def __init__(self):
        self.kinds = set()

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, **constants):
        def kind(x):
            if isinstance(x, torch.Tensor):
                return x.dtype, x.data_ptr() % 16 == 0
            return 1 if x == 1 else (type(x), x % 16 == 0)

        self.kinds.add((tuple(map(kind, arguments)), tuple(sorted(constants.items()))))


@pytest.mark.parametrize("block, k, budget", [(16, 8, 32), (16, 1, 16), (7, 3, 9)])
def test_warm_compiles_every_kernel_that_a_batch_needs(monkeypatch, block, k, budget):
    names = {
        tree: ["_build_tree_kernel", "_tree_links_kernel", "_ancestor_mask_kernel"],
        masks: ["_fill_full_mask_kernel"],
        accept: ["_walk_kernel"],
    }
    kernels = [Launches() for module in names for _ in names[module]]
    for kernel, (module, name) in zip(kernels, ((m, n) for m in names for n in names[m])):
        monkeypatch.setattr(module, name, kernel)
    device = torch.device("cpu")
    ops = ops_for(torch.device("cuda"))
    warm(ops, block, k, budget, device)
    warmed = [set(kernel.kinds) for kernel in kernels]
    assert all(warmed)
    for bs in (1, 2, 3, 16, 48, 49, 300):
        root_tokens, ids, logprobs = marginals(0, device, bs, block, k)
        grown = ops.build_tree(root_tokens, ids, logprobs, budget)
        ancestors = ops.ancestor_mask(grown.parents, min(block, budget) - 1)
        ops.tree_links(grown.parents)
        ops.full_mask(ancestors, torch.full((bs,), 1000 + bs), bs * (1000 + bs))
        ops.walk(grown.tokens, grown.parents, grown.tokens, min(block, budget) - 1)
    assert [kernel.kinds for kernel in kernels] == warmed


@pytest.mark.parametrize("bs, num_nodes", [(1, 1), (3, 2), (3, 17), (1, 33), (0, 8)])
@pytest.mark.parametrize("max_depth", [0, 1, 15])
def test_walk(device, bs, num_nodes, max_depth):
    for vocab in (1, 2, 6):
        parents = random_parents(vocab, device, bs, num_nodes)
        generator = torch.Generator().manual_seed(vocab)
        tokens, drawn = (
            torch.randint(vocab, (bs, num_nodes), generator=generator).to(device) for _ in range(2)
        )
        arguments = tokens, parents, drawn, max_depth
        assert_same(accept.walk(*arguments), accept_twin.walk(*arguments))
