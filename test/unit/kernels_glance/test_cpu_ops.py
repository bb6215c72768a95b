"""The C++ ops for a CPU against their twins in core/: equal in every element."""

import dataclasses
import random

import pytest
import torch
from sglang.srt.speculative.glance.core import accept
from sglang.srt.speculative.glance.core import tree as twins

sgl_kernel = pytest.importorskip("sgl_kernel", reason="a machine with a GPU has no CPU ops")

from sglang.srt.speculative.glance.kernels import cpu_ops  # noqa: E402

pytestmark = pytest.mark.skipif(sgl_kernel.USES_TWINS, reason="SGL_KERNEL_CPU_TWINS=1")


def marginals(seed, bs, offsets, k, ties):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(bs, offsets, 50, generator=generator).argsort(dim=-1)[..., :k].contiguous()
    logits = torch.randn(bs, offsets, k, generator=generator) * 2
    logprobs = torch.log_softmax(logits, dim=-1)
    if ties:
        logprobs = -(logprobs.abs() * 2).round() / 2
    return torch.arange(bs) + 100, ids, logprobs


def equal(ours, twin):
    for field in dataclasses.fields(twin):
        left, right = getattr(ours, field.name), getattr(twin, field.name)
        assert left.dtype == right.dtype, field.name
        assert torch.equal(left, right), field.name


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("offsets", "k"), [(15, 8), (15, 1), (3, 4), (7, 2)])
def test_trees(offsets, k, ties):
    largest = min(twins.max_nodes(offsets + 1, k), 65)
    for budget in {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65} & set(range(1, largest + 1)):
        for seed in range(5):
            inputs = marginals(seed, 1 + seed % 3, offsets, k, ties)
            equal(cpu_ops.build_tree(*inputs, budget), twins.build_tree(*inputs, budget))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.0])
def test_trees_of_values_that_are_not_logprobs(value):
    roots, ids, logprobs = marginals(1, 2, 15, 8, ties=False)
    logprobs[0, ::2, 3] = value
    logprobs[1] = value
    equal(cpu_ops.build_tree(roots, ids, logprobs, 32), twins.build_tree(roots, ids, logprobs, 32))


def random_parents(rng, bs, n):
    return torch.tensor([[-1] + [rng.randrange(i) for i in range(1, n)] for _ in range(bs)])


def test_masks_and_links_of_random_trees():
    rng = random.Random(0)
    for _ in range(200):
        parents = random_parents(rng, rng.randint(1, 4), rng.randint(1, 64))
        assert torch.equal(cpu_ops.ancestor_mask(parents), twins.ancestor_mask(parents))
        for ours, twin in zip(cpu_ops.tree_links(parents), twins.tree_links(parents), strict=True):
            assert torch.equal(ours, twin)


def test_walks():
    rng = random.Random(1)
    for _ in range(300):
        bs, n, depth = rng.randint(1, 4), rng.randint(1, 40), rng.randint(0, 16)
        parents = random_parents(rng, bs, n)
        tokens, drawn = (
            torch.tensor([[rng.randrange(3) for _ in range(n)] for _ in range(bs)])
            for _ in range(2)
        )
        equal(
            cpu_ops.walk(tokens, parents, drawn, depth), accept.walk(tokens, parents, drawn, depth)
        )


def test_a_node_before_its_parent_is_refused():
    with pytest.raises(RuntimeError, match="expected node 1 to stand after its parent"):
        cpu_ops.tree_links(torch.tensor([[-1, 2, 0]]))


def test_an_impossible_budget_is_refused():
    roots, ids, logprobs = marginals(0, 1, 3, 1, ties=False)
    with pytest.raises(ValueError, match="budget"):
        cpu_ops.build_tree(roots, ids, logprobs, 5)
