"""The torch head: names, one block against its own loop, what it saves. That it equals the served
head is shown on a running server (``engine/test_training.py``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sglang.glance.shipped import HEAD
from sglang.glance.train.blocks import Sampler, TappedRow, collate
from sglang.glance.train.head import Head, rotate, round_to_bfloat16
from sglang.glance.train.loss import Vocabulary, block_loss, run
from sglang.glance.train.measure import accept_lens, chain_accept, correct_drafts
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights, expected_shapes


def one_block(head: Head, vocabulary: Vocabulary, row: TappedRow, root: int, block: int) -> object:
    sampler = Sampler(block, head.config["dflash_config"]["mask_token_id"], 0, 7.0, 0.0)
    roots = torch.tensor([root])
    return collate([row], [sampler.lay(row.ids, roots, torch.zeros_like(roots), block)])


def test_parameters_are_the_checkpoints() -> None:
    config = json.loads((HEAD / "config.json").read_text())
    shapes = {name: tuple(w.shape) for name, w in Head(config).named_parameters()}
    assert shapes == expected_shapes(config, 5)


def test_saved_and_loaded_again(head: Head, tmp_path: Path) -> None:
    head.save(tmp_path, json.dumps(head.config))
    check_weights(tmp_path, head.config, 2)
    round_to_bfloat16(head)
    other = Head(head.config)
    other.load(tmp_path)
    for name, weight in head.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o044 == 0o044


def test_a_pass_written_out(head: Head, vocabulary: Vocabulary, make_row: Callable) -> None:
    """One block of the first layer's attention, head by head and key by key."""
    row, root, block = make_row(12, 5), 7, 4
    batch = one_block(head, vocabulary, row, root, block)
    attention, layer = head.layers[0].self_attn, head.layers[0]
    context = head.hidden_norm(head.fc(row.taps[:root].float()))
    x = layer.input_layernorm(F.embedding(batch.input_ids[0], vocabulary.embedding))
    keys_of, values_of = torch.cat([context, x]), torch.cat([context, x])
    out = torch.zeros(block, 4, 8)
    for i in range(block):
        for h in range(4):
            q = turned(attention.q_norm(attention.q_proj(x[i]).view(4, 8)[h]), root + i)
            scores, values = [], []
            for j in range(root + block):
                k = attention.k_norm(attention.k_proj(keys_of[j]).view(2, 8)[h // 2])
                scores.append(q @ turned(k, j) / 8**0.5)
                values.append(attention.v_proj(values_of[j]).view(2, 8)[h // 2])
            out[i, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    expected = attention.o_proj(out.flatten(1))
    positions = torch.cat([torch.arange(root), root + torch.arange(block)])[None]
    turns = head.rotary(positions[:, root:]), head.rotary(positions)
    got = attention(x[None], context[None], turns, batch.mask[:, None])[0]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    angles = position / 10000.0 ** (torch.arange(0, 8, 2) / 8)
    a, b = x[:4], x[4:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()])


def test_rotation_keeps_lengths() -> None:
    x, angles = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 5, 4)
    turned_x = rotate(x, (angles.cos(), angles.sin()))
    torch.testing.assert_close(turned_x.norm(dim=-1), x.norm(dim=-1))


def test_blocks_side_by_side_equal_blocks_alone(
    head: Head, vocabulary: Vocabulary, make_row: Callable
) -> None:
    """Neither other blocks, nor other rows, nor padding reach a block."""
    rows = [make_row(14, 5), make_row(9, 4, seed=1)]
    sampler = Sampler(4, 39, 4, 7.0, 0.5)
    drawn = [sampler.draw(row, torch.Generator().manual_seed(5)) for row in rows]
    together = run(head, vocabulary, collate(rows, drawn))
    for number, (row, blocks) in enumerate(zip(rows, drawn)):
        for block in range(int(blocks.block_ids.max()) + 1):
            inside = (blocks.block_ids == block).nonzero()[:, 0]
            alone = collate([row], [type(blocks)(*(column[inside] for column in blocks))])
            torch.testing.assert_close(
                together[number, inside], run(head, vocabulary, alone)[0], rtol=1e-4, atol=1e-5
            )


def test_loss_is_the_weighted_sum(
    head: Head, vocabulary: Vocabulary, make_row: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of a few places as in one piece, gradients too."""
    rows = [make_row(14, 5), make_row(9, 4, seed=1)]
    sampler = Sampler(4, 39, 4, 7.0, 0.5)
    batch = collate(rows, [sampler.draw(r, torch.Generator().manual_seed(5)) for r in rows])
    logits = F.linear(run(head, vocabulary, batch), vocabulary.lm_head)
    losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
    expected = (losses * batch.weights.flatten()).sum()
    expected.backward()
    gradient = head.fc.weight.grad.clone()
    for chunk_bytes in (1 << 20, 7 * 4 * 40):
        head.zero_grad()
        monkeypatch.setattr("sglang.glance.train.loss.CHUNK_BYTES", chunk_bytes)
        loss = block_loss(head, vocabulary, batch)
        loss.total.backward()
        torch.testing.assert_close(loss.total, expected)
        torch.testing.assert_close(head.fc.weight.grad, gradient, rtol=1e-4, atol=1e-5)
        assert loss.num_places == int((batch.weights > 0).sum())
        right = (logits.argmax(-1) == batch.labels) & (batch.weights > 0)
        assert loss.num_right == int(right.sum())


@pytest.mark.parametrize(
    ("correct", "lens"),
    [([3, 0, 0, 0, 0], [4, 1]), ([0, 0, 0], [1, 1, 1]), ([2, 1, 0], [3]), ([5, 9], [2]), ([], [])],
)
def test_rounds_of_a_chain(correct: list[int], lens: list[int]) -> None:
    assert accept_lens(correct) == lens


def test_accept_length_equals_round_by_round_drafting(
    head: Head, vocabulary: Vocabulary, make_row: Callable
) -> None:
    """Drafts of an untrained head made true: answers follow what it would draft now and then."""
    rows = [follow(head, vocabulary, make_row(24, 5, seed), seed) for seed in range(3)]
    tokens = rounds = 0
    for row in rows:
        root = row.prompt_len
        while root < len(row.ids) - 1:
            batch = one_block(head, vocabulary, row, root, 4)
            drafts = F.linear(run(head, vocabulary, batch)[0], vocabulary.lm_head).argmax(-1)[1:]
            truth = row.ids[root + 1 : root + 4].tolist()
            right = [d == t for d, t in zip(drafts.tolist(), truth)]
            committed = (right.index(False) if False in right else len(right)) + 1
            committed = min(committed, len(row.ids) - 1 - root)
            tokens, rounds, root = tokens + committed, rounds + 1, root + committed
    got = chain_accept(partial(correct_drafts, head, vocabulary), rows)
    assert (got.num_answers, got.num_tokens, got.num_rounds) == (3, tokens, rounds)
    assert got.accept_len > 1.3


@torch.no_grad()
def follow(head: Head, vocabulary: Vocabulary, row: TappedRow, seed: int) -> TappedRow:
    ids, root = row.ids.clone(), row.prompt_len
    lengths = torch.randint(0, 4, (50,), generator=torch.Generator().manual_seed(seed)).tolist()
    for length in lengths:
        if root >= len(ids) - 1:
            break
        batch = one_block(head, vocabulary, row._replace(ids=ids), root, 4)
        drafts = F.linear(run(head, vocabulary, batch)[0], vocabulary.lm_head).argmax(-1)[1:]
        kept = drafts[: min(length, len(ids) - 1 - root)]
        ids[root + 1 : root + 1 + len(kept)] = kept
        root += length + 1
    return row._replace(ids=ids)
