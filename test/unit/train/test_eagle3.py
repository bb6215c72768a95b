"""The EAGLE3 head against a loop that drafts as a server does: a place at a time, with a cache."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sglang.glance.train import eagle3
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.eagle3 import STEP_WEIGHT, ChainObjective, Eagle3Head, chain_batch
from sglang.glance.train.head import rotate
from sglang.glance.train.loss import Vocabulary

HIDDEN, VOCAB, PASSES = 16, 40, 4


@pytest.fixture
def head(config: dict) -> Eagle3Head:
    config = {
        **config,
        "rope_parameters": {"rope_theta": 10000.0},
        "draft_vocab_size": VOCAB,
        "num_passes": PASSES,
    }
    made = Eagle3Head(config)
    made.initialise(seed=1)
    generator = torch.Generator().manual_seed(3)
    for weight in made.parameters():
        if weight.dim() == 1:
            weight.data = 0.5 + torch.rand(weight.shape, generator=generator)
    return made


def row(length: int, prompt_len: int, seed: int = 0) -> TappedRow:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (length,), generator=generator)
    taps = torch.randn(length - 1, 4 * HIDDEN, generator=generator)
    return TappedRow(ids, prompt_len, taps.bfloat16())


class Served:
    """One request's cache: ``step`` takes an embedding and a state, and keeps keys and values."""

    def __init__(self, head: Eagle3Head) -> None:
        self.head, self.keys, self.values = head, [], []

    def step(self, embed: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        layer, attention = self.head.midlayer, self.head.midlayer.self_attn
        x = torch.cat([layer.input_layernorm(embed), layer.hidden_norm(state)])[None]
        turn = self.head.rotary(torch.tensor([[len(self.keys)]]))

        def split(out: torch.Tensor) -> torch.Tensor:
            return out.view(1, -1, attention.size)

        turned = [rotate(split(p(x))[:, :, None], turn)[0] for p in (
            attention.q_proj, attention.k_proj)]  # fmt: skip
        q, k = (t.flatten(0, 0)[:, 0] for t in turned)
        self.keys.append(k)
        self.values.append(split(attention.v_proj(x))[0])
        keys, values = (
            torch.stack(t).repeat_interleave(attention.heads // attention.kv_heads, dim=1)
            for t in (self.keys, self.values)
        )
        weights = (torch.einsum("hd,thd->ht", q, keys) / attention.size**0.5).softmax(-1)
        out = torch.einsum("ht,thd->hd", weights, values).flatten()
        state = state + attention.o_proj(out)
        return state + layer.mlp(layer.post_attention_layernorm(state))


@torch.no_grad()
def drafted(head: Eagle3Head, row: TappedRow, root: int) -> list[torch.Tensor]:
    """Logits of the drafts behind token ``root``, the true tokens fed on the way."""
    embeds, taps = row.taps[:, :HIDDEN].float(), row.taps[:, HIDDEN:].float()
    served, state, logits = Served(head), None, []
    for place in range(root):
        state = served.step(embeds[place + 1], head.fc(taps[place]))
    for k in range(PASSES):
        logits.append(head.lm_head(head.norm(state)))
        if root + k + 1 > len(embeds) - 1:
            break
        state = served.step(embeds[root + k + 1], state)
    return logits


@torch.no_grad()
def test_passes_are_those_of_a_server(head: Eagle3Head) -> None:
    rows = [row(14, 5), row(11, 3, seed=1)]
    batch = chain_batch(rows, PASSES)
    states = head(batch.embeds.float(), batch.taps.float(), batch.first, PASSES)
    assert batch.first == 2 and states[0].shape[1] == states[3].shape[1] == 10
    for number, each in enumerate(rows):
        for root in range(each.prompt_len, len(each.ids) - 1):
            for k, logits in enumerate(drafted(head, each, root)):
                place = root - 1 + k
                if place >= len(each.ids) - 2:
                    break
                place -= batch.first
                got = head.lm_head(states[k][number, place])
                torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-4)
                assert batch.labels[number, place] == each.ids[root + k + 1]
                assert batch.weights[number, k, place] == pytest.approx(STEP_WEIGHT**k)


@torch.no_grad()
@pytest.mark.parametrize("length, roots", [(16, (5, 9, 10, 12)), (7, (4, 5)), (6, ())])
def test_right_drafts_are_counted_from_every_root(
    head: Eagle3Head, length: int, roots: tuple[int, ...]
) -> None:
    """Answers are made the head's own, in part, so that runs of every length occur."""
    vocabulary = Vocabulary(torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
    each = row(length, 4)
    for root in roots:
        each.ids[root + 1] = drafted(head, each, root)[0].argmax()
    got = eagle3.correct_drafts(head, vocabulary, each)
    wanted = []
    for root in range(each.prompt_len, len(each.ids) - 1):
        run = 0
        for k, logits in enumerate(drafted(head, each, root)):
            if root + k + 1 >= len(each.ids) or logits.argmax() != each.ids[root + k + 1]:
                break
            run += 1
        wanted.append(run)
    assert got == wanted
    assert max(got) >= bool(roots)


def test_loss_is_the_weighted_cross_entropy(head: Eagle3Head) -> None:
    vocabulary = Vocabulary(torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
    objective = ChainObjective(head, vocabulary, PASSES)
    rows = [row(9, 4), row(12, 7, seed=2)]
    loss = objective.loss(objective.prepare(rows, torch.Generator()))
    total, places = 0.0, 0
    for each in rows:
        for root in range(each.prompt_len, len(each.ids) - 1):
            for k, logits in enumerate(drafted(head, each, root)):
                if root + k + 1 < len(each.ids):
                    label = each.ids[root + k + 1]
                    total += STEP_WEIGHT**k * F.cross_entropy(logits, label).item()
                    places += 1
    assert loss.num_places == places
    assert loss.total.item() == pytest.approx(total, rel=1e-4)
    loss.total.backward()
    assert all(weight.grad is not None for weight in head.parameters())
