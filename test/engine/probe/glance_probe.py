"""An SGLang plugin that watches GLANCE from inside the engine and turns its drafts around.

A server loads it only when its folder and the entry point beside it are on ``PYTHONPATH``; see
``test_probe.py``. One JSON line an event goes to the file that ``GLANCE_PROBE`` names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_SRT = "sglang.srt"
_GLANCE = f"{_SRT}.speculative.glance.engine"
_DFLASH = f"{_SRT}.speculative.dflash_worker_v2.DFlashWorkerV2"
_batch: list[Any] = [None]  # the batch of the pass that is running


def _record(kind: str, **values: Any) -> None:
    with open(os.environ["GLANCE_PROBE"], "a") as out:
        out.write(json.dumps({"kind": kind, **values}) + "\n")


def _keep_batch(original: Callable, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    _batch[0] = batch
    return original(worker, batch, *args, **kwargs)


def _last_is_best(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """The likeliest candidate becomes the last one, and none looks likelier than another: the
    budget fills the tree level by level, with the right token the last sibling."""
    marginals = original(*args, **kwargs)
    return marginals._replace(
        ids=marginals.ids.flip(-1), logprobs=torch.full_like(marginals.logprobs, -1.0)
    )


def _embedded_ids(original: Callable, layer: Any, ids: torch.Tensor) -> torch.Tensor:
    if ids.numel():
        _record("embed", low=int(ids.min()), high=int(ids.max()), vocab=layer.org_vocab_size)
    return original(layer, ids)


def _head_slots(
    original: Callable, worker: Any, ctx_hidden: Any, ctx_positions: Any, ctx_cache_loc: Any
) -> None:
    """Whether each written slot is the one its token index has in its request's row."""
    batch = _batch[0]
    rows = batch.req_to_token_pool.req_to_token[batch.req_pool_indices]
    owned = (rows[:, ctx_positions.long()] == ctx_cache_loc).any(0)
    last = int(ctx_positions.max())
    _record("head", tokens=len(ctx_cache_loc), owned=int(owned.sum()), last=last)
    original(worker, ctx_hidden, ctx_positions, ctx_cache_loc)


def _accepted_nodes(original: Callable, batch: Any, rows: torch.Tensor, accept_lens: Any) -> None:
    """Tree nodes on each request's accepted path, the root first."""
    budget = batch.spec_info.draft_token_num
    _record("path", nodes=[[row % budget for row in path if row >= 0] for path in rows.tolist()])
    original(batch, rows, accept_lens)


def _verify_positions(
    original: Callable, deltas: Any, pool_indices: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    mrope = original(deltas, pool_indices, positions)
    inputs = _batch[0].multimodal_inputs
    _record(
        "mrope",
        seq_lens=_batch[0].seq_lens.tolist(),
        positions=positions.tolist(),
        deltas=[None if x is None else int(x.mrope_position_delta) for x in inputs],
        mrope=mrope.tolist(),
    )
    return mrope


def _keep_states(original: Callable, worker: Any, **given: Any) -> Any:
    """The target's states as they reach the head, with their token indices."""
    _save("states", states=given["target_hidden"], positions=given["positions"])
    return original(worker, **given)


def _keep_drafts(original: Callable, drafter: Any, hidden: torch.Tensor) -> Any:
    """Every offset's candidates, before their order is turned around."""
    marginals = original(drafter, hidden)
    _save("drafts", prefix_lens=_batch[0].seq_lens, **marginals._asdict())
    return marginals


def _save(kind: str, **tensors: torch.Tensor) -> None:
    """Only while a test has made the folder: a prompt's states are 100 KB and more."""
    folder = Path(os.environ["GLANCE_PROBE"]).with_name("tensors")
    if folder.is_dir():
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        part = folder / "part"
        torch.save(copies, part)
        part.rename(folder / f"{kind}-{len(list(folder.iterdir())):05}.pt")


def _finished_round(
    original: Callable, worker: Any, num_correct_drafts: list[int], **more: Any
) -> None:
    _record("round", num_correct_drafts=num_correct_drafts)
    original(worker, num_correct_drafts, **more)


HOOKS = {
    f"{_DFLASH}._append_target_hidden_to_draft_kv_by_loc": _keep_states,
    f"{_GLANCE}.round.draft.BlockDrafter.marginals": _keep_drafts,
    f"{_GLANCE}.worker.GlanceWorker.forward_batch_generation": _keep_batch,
    f"{_GLANCE}.round.draft.BlockDrafter.propose": _last_is_best,
    f"{_GLANCE}.round.commit.move_accepted": _accepted_nodes,
    f"{_GLANCE}.worker.GlanceWorker._append_target_hidden_sequential": _head_slots,
    f"{_GLANCE}.worker.GlanceWorker.on_verify_complete_cpu": _finished_round,
    f"{_SRT}.layers.vocab_parallel_embedding.VocabParallelEmbedding.forward": _embedded_ids,
    f"{_GLANCE}.round.mrope.MropeDeltas.positions": _verify_positions,
}


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)
