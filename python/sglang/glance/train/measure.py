"""Accept length without a server: chains drafted along the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import torch
import torch.nn.functional as F
from sglang.glance.train.blocks import Sampler, TappedRow, collate
from sglang.glance.train.head import Head
from sglang.glance.train.loss import Vocabulary, chunks, run

FORMULA = (
    "Accept length = (answer tokens - answers) / rounds, pooled. Teacher-forced greedy chain: a "
    "round drafts a block behind the last committed token, and commits its longest prefix that "
    "equals the target's own greedy answer and one more token"
)
BLOCKS_AT_ONCE = 32


class Accepted(msgspec.Struct, frozen=True):
    """``num_tokens``: committed by ``num_rounds`` rounds, the answers' first tokens excluded."""

    num_answers: int
    num_tokens: int
    num_rounds: int

    @property
    def accept_len(self) -> float:
        return self.num_tokens / self.num_rounds


@torch.no_grad()
def chain_accept(drafts: Callable[[TappedRow], list[int]], rows: Iterable[TappedRow]) -> Accepted:
    """``drafts(row)``: for every root of its answer, how many drafts are right."""
    answers = tokens = rounds = 0
    for row in rows:
        lens = accept_lens(drafts(row))
        answers, tokens, rounds = answers + 1, tokens + sum(lens), rounds + len(lens)
    return Accepted(answers, tokens, rounds)


def accept_lens(correct: list[int]) -> list[int]:
    """``correct[i]``: drafts that would be right from a root at answer token i; the last token is
    no root. What each round of the chain commits."""
    lens, at = [], 0
    while at < len(correct):
        lens.append(min(correct[at] + 1, len(correct) - at))
        at += lens[-1]
    return lens


def correct_drafts(head: Head, vocabulary: Vocabulary, row: TappedRow) -> list[int]:
    """For every root of the answer, how many offsets from the first on are right."""
    dflash = head.config["dflash_config"]
    sampler = Sampler(dflash["block_size"], dflash["mask_token_id"], 0, 1.0, 0.0)
    device, correct = vocabulary.lm_head.device, []
    for roots in torch.arange(row.prompt_len, len(row.ids) - 1).split(BLOCKS_AT_ONCE):
        blocks = sampler.lay(row.ids, roots, torch.zeros_like(roots), sampler.block)
        batch = collate([row], [blocks]).to(device)
        hidden = run(head, vocabulary, batch)[0].to(vocabulary.lm_head.dtype)
        parts = [F.linear(hidden[p], vocabulary.lm_head) for p in chunks(len(hidden), vocabulary)]
        right = torch.cat([part.argmax(-1) for part in parts]) == batch.labels[0]
        right = (right & (batch.weights[0] > 0)).view(len(roots), -1)[:, 1:]
        correct += right.long().cumprod(-1).sum(-1).tolist()
    return correct
