"""The kinds of heads that are trained: GLANCE's, and the EAGLE3 baseline on the same rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sglang.glance.train import eagle3, measure
from sglang.glance.train.blocks import Sampler, TappedRow
from sglang.glance.train.head import Head
from sglang.glance.train.loop import Objective
from sglang.glance.train.loss import Vocabulary
from sglang.glance.train.objective import BlockObjective
from torch import nn

RECIPE = ("anchors", "decay", "past_block")  # options that only blocks have


class Kind(NamedTuple):
    """``taps(config)``: the target's states that a row needs, in :meth:`Target.states`' numbers.
    ``objective(head, vocabulary, options)``; ``drafts(head, vocabulary, row)``: right drafts at
    every root of a row."""

    taps: Callable[[Mapping[str, Any]], list[int]]
    head: Callable[[argparse.Namespace, Mapping[str, Any], Vocabulary], nn.Module]
    objective: Callable[[nn.Module, Vocabulary, argparse.Namespace], Objective]
    drafts: Callable[[nn.Module, Vocabulary, TappedRow], list[int]]


def block_head(
    options: argparse.Namespace, config: Mapping[str, Any], vocabulary: Vocabulary
) -> Head:
    head = Head(config)
    head.initialise(options.seed)
    if options.init:
        head.load(options.init)
    return head


def block_objective(
    head: nn.Module, vocabulary: Vocabulary, options: argparse.Namespace
) -> BlockObjective:
    dflash = head.config["dflash_config"]
    recipe = {name: getattr(options, name) for name in RECIPE}
    sampler = Sampler(dflash["block_size"], dflash["mask_token_id"], **recipe)
    return BlockObjective(head, vocabulary, sampler)


def chain_head(
    options: argparse.Namespace, config: Mapping[str, Any], vocabulary: Vocabulary
) -> eagle3.Eagle3Head:
    head = eagle3.Eagle3Head(config)
    head.initialise(options.seed)
    head.copy_lm_head(vocabulary)
    return head


KINDS = {
    "GLANCE": Kind(
        lambda config: config["dflash_config"]["target_layer_ids"],
        block_head,
        block_objective,
        measure.correct_drafts,
    ),
    "EAGLE3": Kind(
        lambda config: [
            eagle3.EMBEDDING_TAP,
            *config["eagle_config"]["eagle_aux_hidden_state_layer_ids"],
        ],
        chain_head,
        lambda head, vocabulary, _: eagle3.ChainObjective(
            head, vocabulary, head.config["num_passes"]
        ),
        eagle3.correct_drafts,
    ),
}
