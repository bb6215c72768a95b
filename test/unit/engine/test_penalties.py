"""Penalties at tree nodes equal SGLang's own, fed token by token; and the output they count is
complete whether the host knows it or not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.core.penalties import shift
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.round import penalties
from sglang.srt.speculative.glance.engine.round.penalties import (
    OutputCounts,
    begin,
    is_penalised,
    penalise_nodes,
)

VOCAB, DEPTH = 24, 5
TOKENIZER = SimpleNamespace(eos_token_id=3, additional_stop_token_ids={4})
ASKED = [
    {},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.8},
    {"repetition_penalty": 1.3},
    {"min_new_tokens": 12, "stop_token_ids": [9, 11]},
    {"frequency_penalty": -0.4, "presence_penalty": 0.9, "repetition_penalty": 0.7},
    {"repetition_penalty": 1.2, "min_new_tokens": 6},
]


def request(asked: dict, prompt_len: int, output: list[int]) -> Req:
    params = SamplingParams(max_new_tokens=64, **asked)
    params.normalize(TOKENIZER)
    req = Req("r", "", [0] * prompt_len, params, eos_token_ids={3, 5}, vocab_size=VOCAB)
    req.tokenizer = TOKENIZER
    req.output_ids.extend(output)
    return req


@dataclass
class Batch:
    """What the pass reads of a batch; SGLang's penalty state holds it weakly."""

    reqs: list[Req]
    req_pool_indices: torch.Tensor | None = None
    sampling_info: Any = None
    device: str = "cpu"


@dataclass
class Info:
    """What a re-prefill reads of SGLang's sampling state."""

    temperatures: torch.Tensor
    vocab_size: int
    acc_additive_penalties: torch.Tensor
    acc_scaling_penalties: torch.Tensor | None


def host_state(batch: Batch, output: list[int]) -> penaltylib.BatchedPenalizerOrchestrator:
    """SGLang's state for one request after `output`, told token by token."""
    state = penaltylib.BatchedPenalizerOrchestrator(
        VOCAB,
        batch,
        {
            penaltylib.BatchedFrequencyPenalizer,
            penaltylib.BatchedMinNewTokensPenalizer,
            penaltylib.BatchedPresencePenalizer,
            penaltylib.BatchedRepetitionPenalizer,
        },
    )
    for token in output:
        state.cumulate_output_tokens(torch.tensor([token]))
    return state


def host_row(logits: torch.Tensor, req: Req, output: list[int]) -> torch.Tensor:
    batch = Batch([req])
    state = host_state(batch, output)
    added = torch.zeros((1, VOCAB))
    state.accumulate_additive_penalties(added)
    scale = state.accumulate_scaling_penalties()
    return shift(logits[None], added, torch.ones_like(added) if scale is None else scale)[0]


def tree_of(rng: random.Random, roots: list[int], num_nodes: int) -> Tree:
    parents, tokens, depths = [], [], []
    for root in roots:
        up, deep = [-1], [0]
        for _ in range(1, num_nodes):
            up.append(rng.choice([n for n, depth in enumerate(deep) if depth < DEPTH]))
            deep.append(deep[up[-1]] + 1)
        parents.append(up)
        depths.append(deep)
        tokens.append([root] + [rng.randrange(VOCAB) for _ in range(1, num_nodes)])
    return Tree(*map(torch.tensor, (tokens, parents, depths)), None)


def path_of(tree: Tree, row: int, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.insert(0, int(tree.tokens[row, node]))
        node = int(tree.parents[row, node])
    return path


class World:
    """Requests that decode in rounds, and what of their output the host knows."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.outputs = [[self.rng.randrange(VOCAB)] for _ in ASKED]  # the prefill's token
        self.reqs = [request(asked, self.rng.randint(1, 9), []) for asked in ASKED]
        self.pool_rows = torch.tensor(self.rng.sample(range(1, 20), len(ASKED)))
        self.counts = OutputCounts(20, VOCAB, DEPTH, torch.device("cpu"))
        begin(Batch(self.reqs, self.pool_rows), self.counts)

    def round(self) -> None:
        """One round: every node's logits are as SGLang would have them; tokens are committed."""
        tree = tree_of(self.rng, [output[-1] for output in self.outputs], 12)
        prefix = [len(r.origin_input_ids) + len(o) - 1 for r, o in zip(self.reqs, self.outputs)]
        positions = torch.tensor(prefix)[:, None] + tree.depths
        logits = torch.randn((len(ASKED), 12, VOCAB))
        got = logits.clone()
        batch = Batch(self.reqs, self.pool_rows)
        penalise_nodes(got, batch, tree, positions, self.counts)
        for row, req in enumerate(self.reqs):
            for node in range(12):
                output = self.outputs[row][:-1] + path_of(tree, row, node)
                expected = host_row(logits[row, node], req, output)
                torch.testing.assert_close(got[row, node], expected)
        # A drawn token is often one that was drafted, so that runs of every length occur.
        drawn = torch.randint(VOCAB, tree.tokens.shape)
        child = torch.randint(1, 12, tree.tokens.shape)
        drawn.scatter_(1, tree.parents.gather(1, child), tree.tokens.gather(1, child))
        accepted = walk(tree.tokens, tree.parents, drawn, DEPTH)
        self.counts.note(batch, tree, accepted)
        for output, run in zip(self.outputs, accepted.committed.tolist()):
            output += [token for token in run if token >= 0]

    def tell(self, rows: list[int], outputs: list[list[int]]) -> None:
        for row in rows:
            known = self.reqs[row].output_ids
            known.extend(outputs[row][len(known) :])

    def retract(self, rows: list[int]) -> None:
        """Their last round is lost, and they are prefilled anew, in rows that others had."""
        for row in rows:
            self.outputs[row] = list(self.reqs[row].output_ids)
        chosen = torch.tensor(rows)
        self.pool_rows[chosen] = self.pool_rows[chosen.roll(1)]
        reqs, zeros = [self.reqs[row] for row in rows], torch.zeros((len(rows), VOCAB))
        info = Info(torch.ones((len(rows), 1)), VOCAB, zeros, None)
        begin(Batch(reqs, self.pool_rows[chosen], info), self.counts)
        for row in rows:
            self.outputs[row].append(self.rng.randrange(VOCAB))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lag", [0, 1], ids=["host up to date", "host one round behind"])
def test_rounds_are_penalised_as_plain_decoding(lag: int, seed: int) -> None:
    torch.manual_seed(seed)
    world = World(seed)
    seen = [[list(output) for output in world.outputs]]
    everyone = list(range(len(ASKED)))
    for _ in range(6):
        if len(seen) > lag:
            world.tell(everyone, seen[-1 - lag])
        world.round()
        seen.append([list(output) for output in world.outputs])
    lens = {len(output) for output in world.outputs}
    assert len(lens) > 2 and max(lens) > 8  # the runs differed, and some were longer than a token


def test_requests_of_which_the_host_knows_more_and_less_share_a_round() -> None:
    """As when a prefill of others came between: some are up to date, others a round behind."""
    torch.manual_seed(0)
    world = World(0)
    for _ in range(4):
        before = [list(output) for output in world.outputs]
        world.round()
        world.tell([0, 2, 4, 6], world.outputs)
        world.tell([1, 3, 5], before)


@pytest.mark.parametrize("seed", range(3))
def test_a_retracted_request_loses_the_round_that_the_host_never_heard_of(seed: int) -> None:
    torch.manual_seed(seed)
    world = World(seed)
    for rows in ([1, 3, 6], [2, 4, 5, 6], [1, 2, 3, 4, 5]):
        for _ in range(2):
            before = [list(output) for output in world.outputs]
            world.round()
            world.tell(list(range(len(ASKED))), before)
        assert any(before[row] != world.outputs[row] for row in rows)
        world.retract(rows)
        world.round()


def test_a_round_sends_no_output_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    copy = penalties.async_h2d
    monkeypatch.setattr(
        penalties, "async_h2d", lambda x, **kw: sent.append(np.size(x)) or copy(x, **kw)
    )
    world, sizes = World(0), []
    for _ in range(6):
        sent.clear()
        world.round()
        world.tell(list(range(len(ASKED))), world.outputs)
        sizes.append(sum(sent))
    assert min(map(len, world.outputs)) >= 6
    assert len(set(sizes)) == 1


def test_what_is_not_asked_for_is_not_touched() -> None:
    assert [is_penalised(req) for req in World(0).reqs] == [False, *[True] * 6]
    logits = torch.randn((2, 1, VOCAB))
    reqs = [request({}, 3, [1, 1]), request({"frequency_penalty": 1.0}, 3, [1, 1])]
    batch = Batch(reqs, torch.tensor([1, 2]))
    tree = Tree(torch.tensor([[1], [1]]), torch.tensor([[-1], [-1]]), torch.zeros((2, 1)), None)
    got = logits.clone()
    counts = OutputCounts(3, VOCAB, 0, torch.device("cpu"))
    counts.start(torch.tensor([2]), torch.nn.functional.one_hot(torch.tensor([1]), VOCAB).float())
    penalise_nodes(got, batch, tree, torch.tensor([[4], [4]]), counts)
    assert torch.equal(got[0], logits[0])
    assert got[1, 0, 1].item() == pytest.approx(logits[1, 0, 1].item() - 2)


def test_a_request_that_was_retracted_keeps_its_penalties() -> None:
    """Its prefill starts with SGLang's fresh state, which knows of no earlier output."""
    outputs = [[], [1, 1, 2], [2, 5], [7], list(range(13)), [1, 1, 1], [3] * 5]
    reqs = [request(asked, 4, output) for asked, output in zip(ASKED, outputs)]
    added, scale = torch.zeros((len(reqs), VOCAB)), torch.ones((len(reqs), VOCAB))
    for row, req in enumerate(reqs):
        batch = Batch([req])
        host_state(batch, []).accumulate_additive_penalties(added[row : row + 1])
    untouched = added.clone()
    info = Info(torch.ones((len(reqs), 1)), VOCAB, added, scale)
    counts = OutputCounts(len(reqs), VOCAB, DEPTH, torch.device("cpu"))
    begin(batch := Batch(reqs, torch.arange(len(reqs)), info), counts)
    info, logits = batch.sampling_info, torch.randn((len(reqs), VOCAB))
    got = shift(logits, info.acc_additive_penalties, info.acc_scaling_penalties)
    for row, (req, output) in enumerate(zip(reqs, outputs)):
        torch.testing.assert_close(got[row], host_row(logits[row], req, output))
    assert torch.equal(added, untouched)  # the scheduler's own copy
