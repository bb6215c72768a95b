"""Trees of sampled tokens follow the target's law, by the test that the served engine is put to;
and that test catches rules that do not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from builders.fit import fit
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.core.tree import Tree, build_tree

VOCAB, LENGTH, DRAWS = 6, 3, 2000
BLOCK, BUDGET = 4, 14

Rule = Callable[[Tree, torch.Tensor], torch.Tensor]  # and probabilities [bs, N, V] -> [bs, N]


@pytest.fixture(scope="module")
def law() -> torch.Tensor:
    """The target: the next token's probabilities given the last two, `[V, V, V]`."""
    return torch.softmax(1.2 * torch.randn((VOCAB,) * 3, generator=torch.manual_seed(5)), -1)


def draw(tree: Tree, probs: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(probs.flatten(0, 1), 1).view(tree.tokens.shape)


def first_child(tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
    """Each node's likeliest drafted child, and whether it has one."""
    num = tree.parents.shape[1]
    nodes = torch.arange(num).expand_as(tree.parents)
    children = torch.full((len(nodes), num + 1), num)
    children.scatter_reduce_(1, torch.where(tree.parents < 0, num, tree.parents), nodes, "amin")
    child = children[:, :num]
    return tree.tokens.gather(1, child.clamp(max=num - 1)), child < num


def accept_the_first_child(tree: Tree, probs: torch.Tensor) -> torch.Tensor:
    token, exists = first_child(tree)
    return torch.where(exists, token, draw(tree, probs))


def accept_what_is_likely_enough(tree: Tree, probs: torch.Tensor) -> torch.Tensor:
    token, exists = first_child(tree)
    likely = probs.gather(2, token[..., None])[..., 0] > 0.2
    return torch.where(exists & likely, token, draw(tree, probs))


def greedy(tree: Tree, probs: torch.Tensor) -> torch.Tensor:
    return probs.argmax(-1)


def decode(law: torch.Tensor, rule: Rule) -> tuple[list[tuple[int, ...]], float]:
    """`DRAWS` answers of `LENGTH` tokens after the tokens 0, 1; and the tokens a round gave."""
    answers = [[0, 1] for _ in range(DRAWS)]
    drafted = torch.log_softmax(torch.randn((1, BLOCK - 1, VOCAB)).expand(DRAWS, -1, -1), -1)
    logprobs, ids = drafted.topk(4)
    num_rounds = num_tokens = 0
    while min(map(len, answers)) < LENGTH + 2:
        last = torch.tensor([answer[-2:] for answer in answers])
        tree = build_tree(last[:, 1], ids, logprobs, BUDGET)
        before = tree.tokens.gather(1, tree.parents.clamp(min=0))
        before[:, 0] = last[:, 0]
        drawn = rule(tree, law[before, tree.tokens])
        accepted = walk(tree.tokens, tree.parents, drawn, BLOCK - 1)
        for answer, run in zip(answers, accepted.committed.tolist()):
            answer += [token for token in run if token >= 0]
        num_rounds, num_tokens = num_rounds + DRAWS, num_tokens + int(accepted.accept_lens.sum())
    return [tuple(answer[2 : LENGTH + 2]) for answer in answers], num_tokens / num_rounds


def distribution(law: torch.Tensor) -> dict[tuple[int, ...], float]:
    out = {}
    for answer in product(range(VOCAB), repeat=LENGTH):
        tokens = (0, 1, *answer)
        steps = [law[tokens[i], tokens[i + 1], tokens[i + 2]] for i in range(LENGTH)]
        out[answer] = float(torch.stack(steps).prod())
    return out


@pytest.mark.parametrize("seed", range(3))
def test_a_draw_for_every_node_follows_the_target(law: torch.Tensor, seed: int) -> None:
    torch.manual_seed(seed)
    answers, tokens_a_round = decode(law, draw)
    found = fit(answers, distribution(law))
    assert found.by_chi_square and found.by_distance, found
    assert tokens_a_round > 1.3  # branches did contribute


@pytest.mark.parametrize("rule", [accept_the_first_child, accept_what_is_likely_enough, greedy])
def test_a_wrong_rule_is_caught(law: torch.Tensor, rule: Rule) -> None:
    torch.manual_seed(0)
    answers, _ = decode(law, rule)
    found = fit(answers, distribution(law))
    assert not found.by_chi_square and not found.by_distance, found


def test_one_draw_outside_the_support_is_caught() -> None:
    found = fit(["a"] * 500 + ["b"] * 499 + ["c"], {"a": 0.5, "b": 0.5, "c": 0.0})
    assert not found.by_chi_square


def test_a_small_bias_is_caught() -> None:
    found = fit(["a"] * 1120 + ["b"] * 880, {"a": 0.5, "b": 0.5})
    assert not found.by_chi_square and not found.by_distance


def test_rare_cells_are_pooled() -> None:
    rare = {f"r{i}": 0.001 for i in range(40)}
    draws = ["a"] * 960 + [f"r{i}" for i in range(40)]
    assert fit(draws, {"a": 0.96, **rare}).num_cells == 2
