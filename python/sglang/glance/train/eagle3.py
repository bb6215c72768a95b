"""An EAGLE3 head, the baseline that GLANCE is compared with, and its training-time test.

The head drafts a token a pass. Place i takes token i + 1's embedding and a state, and predicts
token i + 2. In its first pass the state is the target's at token i, from three layers; in pass k it
is what pass k - 1 gave at place i - 1, so that the head learns from its own states (arXiv
2503.01840).
Names and shapes are those of SGLang's ``LlamaForCausalLMEagle3``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.head import (
    MLP,
    Projections,
    RMSNorm,
    Rotary,
    initialise,
    layer_sizes,
    rotate,
    save_checkpoint,
)
from sglang.glance.train.loss import Loss, Vocabulary, chunks, cross_entropy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEP_WEIGHT = 0.8  # of a pass in the loss, against the pass before it; as published
NUM_TAPS = 3
# The input of the target's first layer: token embeddings, the pictures' among them.
EMBEDDING_TAP = -1


class ChainBatch(NamedTuple):
    """Rows of T places, right-padded. ``embeds [R, T, H]``: of the token after each place;
    ``taps [R, T, 3 H]``. Drafting begins at place ``first``; of the A places from there on,
    ``labels [R, A]``: the token two after each; ``weights [R, S, A]``: of each of S passes, 0 where
    nothing is learnt."""

    embeds: Tensor
    taps: Tensor
    first: int
    labels: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> ChainBatch:
        moved = (
            each.to(device, non_blocking=True) if isinstance(each, Tensor) else each
            for each in self
        )
        return ChainBatch(*moved)


class Attention(Projections):
    """Over twice the hidden size, with no norm of queries and keys."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, 2 * config["hidden_size"])

    def forward(self, x: Tensor, turn: tuple, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Pass ``k = len(past)`` over the last A places, all of T in the first, ``x [R, A, 2 H]``.
        Place i sees the first pass up to place i - k, and pass m at place i - k + m. ``past`` gets
        this pass's keys and values."""
        k, v = (self._split(project(x)) for project in (self.k_proj, self.v_proj))
        repeat = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(repeat, dim=1) for t in (rotate(k, turn).to(v.dtype), v))
        past.append((k, v))
        q, number = rotate(self._split(self.q_proj(x)), turn).to(v.dtype), len(past) - 1
        scale = self.size**-0.5
        length = past[0][0].shape[2]
        places = torch.arange(length, device=x.device)
        seen = places <= places[-x.shape[1] :, None] - number
        scores = [(q @ past[0][0].mT * scale).masked_fill(~seen, float("-inf"))]
        own = [tuple(behind(t, number - m, 2) for t in past[m]) for m in range(1, number + 1)]
        scores += [(q * keys).sum(-1, keepdim=True) * scale for keys, _ in own]
        # The first places of a later pass see nothing; they teach nothing either.
        weights = torch.cat(scores, dim=-1).float().softmax(-1).nan_to_num(0.0).to(v.dtype)
        out = weights[..., :length] @ past[0][1]
        for m, (_, values) in enumerate(own):
            out = out + weights[..., length + m, None] * values
        return self.o_proj(out.transpose(1, 2).flatten(2))


def behind(x: Tensor, distance: int, dim: int) -> Tensor:
    """Place i gets what place ``i - distance`` has, zeros at first."""
    if distance == 0:
        return x
    kept = x.narrow(dim, 0, max(0, x.shape[dim] - distance))
    shape = list(x.shape)
    shape[dim] -= kept.shape[dim]
    return torch.cat([x.new_zeros(shape), kept], dim=dim)


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(config)

    def forward(self, embeds: Tensor, hidden: Tensor, turn: tuple, past: list) -> Tensor:
        x = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(x, turn, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):
    """``config``: the checkpoint's ``config.json``. Parameters have the checkpoint's names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.fc = nn.Linear(NUM_TAPS * hidden, hidden, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config["draft_vocab_size"], bias=False)
        self.rotary = Rotary(config["head_dim"], config["rope_parameters"]["rope_theta"])

    def forward(self, embeds: Tensor, taps: Tensor, first: int, passes: int) -> list[Tensor]:
        """``embeds [R, T, H]``, ``taps [R, T, 3 H]`` -> each pass's normed states of the places
        from ``first`` on, ``[R, T - first, H]``, to be multiplied by ``lm_head``. Only the first
        pass computes the places before."""
        turn = self.rotary(torch.arange(embeds.shape[1], device=embeds.device)[None])
        hidden, past, out = self.fc(taps).float(), [], []
        for number in range(passes):
            hidden = self.midlayer(embeds, behind(hidden, min(number, 1), 1), turn, past)
            if number == 0:
                embeds, hidden = embeds[:, first:], hidden[:, first:]
                turn = tuple(part[:, :, first:] for part in turn)
            out.append(self.norm(hidden))
        return out

    def initialise(self, seed: int) -> None:
        initialise(self, 1, seed)

    @torch.no_grad()
    def copy_lm_head(self, vocabulary: Vocabulary) -> None:
        """The target's LM head is where this head's own starts."""
        self.lm_head.weight.copy_(vocabulary.lm_head)

    def save(self, folder: Path, config_text: str) -> None:
        save_checkpoint(self, folder, config_text)


class ChainObjective:
    """``passes`` drafted tokens from every place of the answers."""

    def __init__(self, head: Eagle3Head, vocabulary: Vocabulary, passes: int) -> None:
        self.module, self.vocabulary, self.passes = head, vocabulary, passes

    def prepare(self, rows: Sequence[TappedRow], generator: torch.Generator) -> ChainBatch:
        return chain_batch(rows, self.passes).to(self.vocabulary.lm_head.device)

    def loss(self, batch: ChainBatch) -> Loss:
        states = self.module(batch.embeds.float(), batch.taps.float(), batch.first, self.passes)
        total, right, places = batch.weights.new_zeros(()), 0, 0
        for number, hidden in enumerate(states):
            learns = batch.weights[:, number] > 0
            shown, labels = hidden[learns], batch.labels[learns]
            weights = batch.weights[:, number][learns]
            for part in chunks(len(shown), self.vocabulary):
                losses, correct = checkpoint(
                    cross_entropy,
                    shown[part],
                    self.module.lm_head.weight,
                    labels[part],
                    use_reentrant=False,
                )
                total = total + (losses * weights[part]).sum()
                right += int(correct.sum())
            places += len(shown)
        return Loss(total, right, places)


def chain_batch(rows: Sequence[TappedRow], passes: int) -> ChainBatch:
    """Each row's first tap is the embedding."""
    hidden = rows[0].taps.shape[-1] // (NUM_TAPS + 1)
    longest = max(len(row.ids) for row in rows) - 2
    begin = min(row.prompt_len for row in rows) - 1
    embeds = torch.zeros(len(rows), longest, hidden, dtype=rows[0].taps.dtype)
    taps = embeds.new_zeros(len(rows), longest, NUM_TAPS * hidden)
    labels = torch.zeros(len(rows), longest - begin, dtype=torch.int64)
    weights = torch.zeros(len(rows), passes, longest - begin)
    for number, row in enumerate(rows):
        length = len(row.ids) - 2
        embeds[number, :length] = row.taps[1:, :hidden]
        taps[number, :length] = row.taps[:-1, hidden:]
        labels[number, : length - begin] = row.ids[2 + begin :]
        for k in range(passes):
            weights[number, k, row.prompt_len - 1 + k - begin : length - begin] = STEP_WEIGHT**k
    return ChainBatch(embeds, taps, begin, labels, weights)


def correct_drafts(head: Eagle3Head, vocabulary: Vocabulary, row: TappedRow) -> list[int]:
    """For every root of the answer, how many drafts from the first on are right."""
    passes = head.config["num_passes"]
    batch = chain_batch([row], passes).to(vocabulary.lm_head.device)
    states = head(batch.embeds.float(), batch.taps.float(), batch.first, passes)
    right = torch.stack([head.lm_head(s[0]).argmax(-1) == batch.labels[0] for s in states])
    # Pass k's place of a root at place i is i + k.
    diagonal = torch.stack([F.pad(right[k], (0, k))[k:] for k in range(passes)], dim=-1)
    return diagonal.long().cumprod(-1).sum(-1).tolist()


def default_taps(num_layers: int) -> list[int]:
    """Near the start, the middle and the end; the last layer's output cannot be captured."""
    return [min(1, num_layers - 4), (num_layers - 1) // 2, num_layers - 2]


def head_config(text: Any, taps: Sequence[int], passes: int) -> dict[str, Any]:
    """``config.json`` of a new head with the sizes of the target's layers, ``num_passes`` apart,
    which says how many passes it was trained for. Plain token indices, as in a GLANCE head."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_passes": passes,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(taps)},
        "num_hidden_layers": 1,
        **layer_sizes(text),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(text.rope_parameters["rope_theta"]),
        },
        "max_position_embeddings": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "draft_vocab_size": text.vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "dtype": "bfloat16",
    }
