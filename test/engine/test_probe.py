"""What reaches the target, the head and the cache, seen from inside a server whose drafter always
puts the right token last among its siblings."""

from __future__ import annotations

import torch
from builders.floors import CORRECT_DRAFTS_PROBED, reached
from harness import Plain, Rounds, assert_identical, assert_no_slot_lost, chat
from probing import BUDGET, Probe
from sglang.srt.speculative.glance.core.positions import mrope_positions

LENGTH = {"max_new_tokens": 110, "ignore_eos": True}


def test_scattered_accepted_nodes_in_a_batch_of_three(
    probe: Probe, plain: Plain, questions: list[dict]
) -> None:
    """Accepted nodes are never the first of their level, and the lengths differ by request."""
    requests = [questions[0], questions[15], {"text": chat("Hello.")}]
    answers = probe.server.generate_all(requests, parallel=3, **LENGTH)
    assert_identical(answers, plain.answers(requests, **LENGTH))
    batches = [lens for lens in probe.rounds.new() if len(lens) == 3]
    assert sum(len(set(lens)) > 1 for lens in batches) >= 5
    accepted = answers[0].meta["spec_correct_drafts_histogram"]
    mean = sum(n * count for n, count in enumerate(accepted)) / sum(accepted)
    assert reached("correct drafts a round", mean) > CORRECT_DRAFTS_PROBED


def test_mixed_batch_of_eight(probe: Probe, plain: Plain, prompts: list[dict]) -> None:
    requests = prompts[:24]
    sampling = {"max_new_tokens": 64, "ignore_eos": True}
    answers = probe.server.generate_all(requests, parallel=8, **sampling)
    assert_identical(answers, plain.answers(requests, **sampling))


def test_the_worker_hears_of_every_round_once(probe: Probe) -> None:
    """Lengths as the host has them, by which it warns of drafts that are of no use."""
    heard = [row["num_correct_drafts"] for row in probe.of("round")]
    rounds = Rounds(probe.rounds.path).new()
    assert len(rounds) > 50
    assert heard == [[length - 1 for length in lens] for lens in rounds]


def test_no_foreign_id_is_embedded(probe: Probe) -> None:
    """Image places hold hashes far above the vocabulary; neither model's embedding sees one."""
    embedded = probe.of("embed")
    assert len(embedded) > 100
    assert all(0 <= row["low"] <= row["high"] < row["vocab"] for row in embedded)


def test_head_slots_follow_the_token_index(probe: Probe) -> None:
    """The head's K/V of token i of a request lies in the slot that its row lists at i, although
    the target's rotary positions of that token are others."""
    written = probe.of("head")
    assert max(row["tokens"] for row in written) > 16  # prefill chunks among them
    assert all(row["owned"] == row["tokens"] for row in written)


def test_verify_positions_have_three_axes(probe: Probe) -> None:
    rows = probe.of("mrope")
    assert any(len({*row["deltas"]} - {None}) >= 2 and None in row["deltas"] for row in rows)
    for row in rows:
        bs = len(row["seq_lens"])
        positions = torch.tensor(row["positions"])
        depths = positions.view(bs, BUDGET) - torch.tensor(row["seq_lens"])[:, None]
        assert (depths == depth_of_a_full_binary_tree()).all()
        deltas = torch.tensor([delta or 0 for delta in row["deltas"]])
        assert (deltas <= 0).all()
        expected = mrope_positions(positions, deltas)
        assert expected.shape == (3, bs * BUDGET)
        assert torch.equal(torch.tensor(row["mrope"]), expected)


def depth_of_a_full_binary_tree() -> torch.Tensor:
    return torch.tensor([(node + 1).bit_length() - 1 for node in range(BUDGET)])


def test_no_slot_is_lost(probe: Probe) -> None:
    assert_no_slot_lost(probe.server)
