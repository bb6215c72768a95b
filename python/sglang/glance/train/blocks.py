"""From answers to training blocks: random roots, what each place shows, sees, learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TappedRow(NamedTuple):
    """``ids [L] int64``: prompt (image tokens counted one each) and answer; the answer starts at
    ``prompt_len``. ``taps [L - 1, K * H] bfloat16``: no block sees the last token's."""

    ids: Tensor
    prompt_len: int
    taps: Tensor


class Blocks(NamedTuple):
    """Q block places of a row, ``[Q]`` each. ``context_lens``: context tokens a place sees;
    ``block_ids``: places of one id see each other; ``labels``: the token to predict;
    ``weights``: 0 where nothing is learnt."""

    input_ids: Tensor
    positions: Tensor
    context_lens: Tensor
    block_ids: Tensor
    labels: Tensor
    weights: Tensor


class Batch(NamedTuple):
    """Rows side by side, ``[R, Q]`` each, ``taps [R, T, K * H]``, ``mask [R, Q, T + Q]``."""

    input_ids: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor
    taps: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Sampler:
    """Draws ``anchors`` blocks a row. A block starts at a root, sees the context before the root,
    and learns the ``block - 1`` tokens after the root, offset k with weight exp(-(k - 1) / decay).
    In a share ``past_block`` of the blocks, 1 to ``block - 1`` true tokens stand between the root
    and the masks. A head that drafts again behind a drafted block meets such inputs."""

    def __init__(
        self, block: int, mask_token_id: int, anchors: int, decay: float, past_block: float
    ) -> None:
        self.block, self.mask_token_id, self.decay = block, mask_token_id, decay
        self.num_long = round(past_block * anchors)
        self.num_plain = anchors - self.num_long

    def draw(self, row: TappedRow, generator: torch.Generator) -> Blocks:
        first, span = row.prompt_len, len(row.ids) - 1 - row.prompt_len
        plain = first + spread(span, self.num_plain, generator)
        long = first + spread(span, self.num_long, generator)
        longest = (len(row.ids) - 2 - long).clamp(max=self.block - 1)
        drawn = torch.rand(len(long), generator=generator)
        # The last root of an answer has nothing to show before what is left to learn.
        shown = torch.where(longest > 0, 1 + (drawn * longest.clamp(min=1)).long(), 0)
        shown = torch.minimum(shown, longest)
        pieces = [self.lay(row.ids, plain, torch.zeros_like(plain), self.block)]
        if self.num_long:
            pieces.append(self.lay(row.ids, long, shown, 2 * self.block - 1, len(plain)))
        size = self.num_plain * self.block + self.num_long * (2 * self.block - 1)
        return padded(pieces, size)

    def lay(
        self, ids: Tensor, roots: Tensor, shown: Tensor, width: int, first_id: int = 0
    ) -> Blocks:
        """Blocks at ``roots [A]`` that show ``shown [A]`` true tokens, ``width`` places each."""
        offsets = torch.arange(width)
        positions = roots[:, None] + offsets
        masked = offsets - shown[:, None]
        exists = (positions < len(ids)) & (masked < self.block)
        tokens = ids[positions.clamp(max=len(ids) - 1)]
        learns = exists & (masked > 0)
        weights = torch.exp(-(masked - 1) / self.decay) * learns
        numbers = first_id + torch.arange(len(roots))[:, None].expand_as(positions)
        # Past the end of the answer masks stay, as when serving; beyond the block nothing is.
        numbers = torch.where(masked < self.block, numbers, -1)
        return Blocks(
            input_ids=torch.where(masked > 0, self.mask_token_id, tokens).flatten(),
            positions=positions.flatten(),
            context_lens=torch.where(numbers < 0, 0, roots[:, None]).flatten(),
            block_ids=numbers.flatten(),
            labels=tokens.flatten(),
            weights=weights.flatten(),
        )


def spread(span: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` distinct numbers of 0..span - 1, one from each equal part; all where there are no
    more."""
    if span <= count:
        return torch.arange(span)
    edges = torch.arange(count + 1) * span // max(count, 1)
    drawn = torch.rand(count, generator=generator)
    return edges[:-1] + (drawn * edges.diff()).long()


def padded(pieces: Sequence[Blocks], size: int) -> Blocks:
    """The pieces one after another, filled up to ``size`` places that teach nothing."""
    columns = [torch.cat(column) for column in zip(*pieces, strict=True)]
    missing = size - len(columns[0])
    fill = Blocks(0, 0, 0, -1, 0, 0.0)
    return Blocks(
        *(
            torch.cat([column, column.new_full((missing,), value)])
            for column, value in zip(columns, fill, strict=True)
        )
    )


def collate(rows: Sequence[TappedRow], blocks: Sequence[Blocks]) -> Batch:
    """``blocks``: one of each row, all of one size."""
    stacked = Blocks(*(torch.stack(column) for column in zip(*blocks, strict=True)))
    length = int(stacked.context_lens.max())
    taps = torch.stack(
        [
            torch.nn.functional.pad(row.taps[:length], (0, 0, 0, max(0, length - len(row.taps))))
            for row in rows
        ]
    )
    ids = stacked.block_ids
    before = torch.arange(length) < stacked.context_lens[..., None]
    beside = ids[:, :, None] == ids[:, None, :]
    return Batch(
        input_ids=stacked.input_ids,
        positions=stacked.positions,
        labels=stacked.labels,
        weights=stacked.weights,
        taps=taps,
        mask=torch.cat([before, beside], dim=-1),
    )
