"""Penalties along each node's own path.

Frequency, presence and repetition penalties look at the tokens a request has put out, and so does a
least number of new tokens. For the token drawn at a tree node these are the request's output before
the root and the node's path: the root, the drafts below it, the node itself. A node's row of logits
therefore differs from its request's in the few tokens of its path alone, which is where the work
beyond one row a request is done.

Additive penalties come before scaling ones. SGLang applies them in that order under overlap
scheduling; without it the order follows the addresses of its penalizer classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Penalties:
    """One row a penalised request, P in all.

    frequency       [P] float32    subtracted once for each time a token was put out
    presence        [P] float32    subtracted once from a token that was put out
    repetition      [P] float32    divides such a token's positive logit, multiplies a negative one
    min_new_tokens  [P] int64      no stop token before so many tokens; 0 where there are none
    stop_ids        [P, S] int64   a row is filled up by repeating one of its own
    """

    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor
    min_new_tokens: torch.Tensor
    stop_ids: torch.Tensor


def node_paths(tokens: torch.Tensor, parents: torch.Tensor, max_depth: int) -> torch.Tensor:
    """Each node's token, its parent's, and so on up to the root. `[P, N, max_depth + 1]` int64 from
    tokens, parents [P, N] int64 (-1 is the root's parent); -1 past the root."""
    node = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    path = []
    for _ in range(max_depth + 1):
        above = node.clamp(min=0)
        path.append(tokens.gather(1, above).masked_fill(node < 0, -1))
        node = parents.gather(1, above).masked_fill(node < 0, -1)
    return torch.stack(path, dim=2)


def count_tokens(ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """How often each token occurs. `[P, vocab]` float32 from ids [P, L] int64; -1 is no token."""
    counts = torch.zeros((ids.shape[0], vocab), device=ids.device)
    return counts.scatter_add_(1, ids.clamp(min=0), (ids >= 0).to(counts.dtype))


def shifts(counts: torch.Tensor, penalties: Penalties) -> tuple[torch.Tensor, torch.Tensor]:
    """For tokens that occurred `counts [P, ...]` times: the term that is added to their logits, and
    the scale that :func:`shift` applies to the sum. Both have the shape of `counts`."""
    shape = (-1,) + (1,) * (counts.dim() - 1)
    frequency, presence, repetition = (
        each.view(shape) for each in (penalties.frequency, penalties.presence, penalties.repetition)
    )
    seen = counts > 0
    return -(frequency * counts + presence * seen), torch.where(seen, repetition, 1.0)


def shift(logits: torch.Tensor, added: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A scale above 1 makes a token less likely whatever the sign of its logit."""
    shifted = logits + added
    return torch.where(shifted < 0, shifted * scale, shifted / scale).to(logits.dtype)


def penalise(
    logits: torch.Tensor, paths: torch.Tensor, counts: torch.Tensor, penalties: Penalties
) -> None:
    """Apply the three penalties in place to logits [P, N, V].

    paths [P, N, D] of `node_paths`; counts [P, V]: of the output before the root.
    """
    # Past the root a path repeats the node's own token: places that name one token agree.
    ids = torch.where(paths >= 0, paths, paths[..., :1])
    on_path = (paths[..., :, None] == ids[..., None, :]).sum(2)
    before = counts.gather(1, ids.flatten(1)).view_as(on_path)
    along = shift(logits.gather(2, ids), *shifts(before + on_path, penalties))
    logits.copy_(shift(logits, *shifts(counts[:, None], penalties)))
    logits.scatter_(2, ids, along)


def forbid_stops(logits: torch.Tensor, num_outputs: torch.Tensor, penalties: Penalties) -> None:
    """Rule out in place the stop tokens of nodes whose request has put out too few tokens.

    logits [P, N, V]; num_outputs [P, N] int64: tokens before the one that is drawn at the node.
    """
    early = num_outputs < penalties.min_new_tokens[:, None]
    ids = penalties.stop_ids[:, None].expand(-1, logits.shape[1], -1)
    kept = logits.gather(2, ids)
    logits.scatter_(2, ids, kept.masked_fill(early[..., None], float("-inf")))
