"""What a commit writes, and where: the rows of a CPU and the fixed shapes of a GPU are the same."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.glance.core.accept import walk
from sglang.srt.speculative.glance.engine.round import commit
from sglang.srt.speculative.glance.engine.round.commit import FixedShapeCommitter, RowCommitter
from sglang.srt.speculative.glance.engine.worker import GlanceWorker

BUDGET, DEPTH, WIDTH = 9, 4, 3


class Pools:
    """The target's KV by slot, and the head's, which is what it was computed from."""

    def __init__(self, bs: int) -> None:
        self.window = torch.randperm(bs * BUDGET * 3)[: bs * BUDGET].view(bs, BUDGET) + 1
        self.target = torch.arange(bs * BUDGET * 3 + 1)
        self.head: dict[int, tuple[int, int]] = {}

    def move(self, batch: Any, rows: torch.Tensor, num_correct: torch.Tensor, _: Any) -> None:
        """SGLang's move: into the first slots of each window, from the accepted nodes' slots."""
        lens = (num_correct + 1).tolist()
        slots = self.window.flatten()
        before = self.target.clone()
        for row, path, length in zip(self.window, rows, lens, strict=True):
            assert (path[length:] == -1).all()
            self.target[row[:length]] = before[slots[path[:length]]]

    def append(
        self,
        *,
        target_hidden: torch.Tensor,
        cache_loc: torch.Tensor,
        positions: torch.Tensor,
        cache_loc_2d: torch.Tensor | None = None,
        commit_lens: torch.Tensor | None = None,
    ) -> None:
        """The host's writer: of fixed shapes it writes each row's first ``commit_lens``."""
        kept = torch.ones(len(cache_loc), dtype=torch.bool)
        if cache_loc_2d is not None:
            assert torch.equal(cache_loc_2d.flatten(), cache_loc)
            kept = (torch.arange(cache_loc_2d.shape[1]) < commit_lens[:, None]).flatten()
        assert len(target_hidden) == len(positions) == len(cache_loc)
        rows = target_hidden[:, 0].long()
        for slot, row, position in zip(cache_loc[kept], rows[kept], positions[kept], strict=True):
            self.head[int(slot)] = int(row), int(position)


def committed(kind: type, seed: int, patch: pytest.MonkeyPatch) -> tuple[Any, Any, Pools]:
    torch.manual_seed(seed)
    bs = 1 + seed % 4
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 4, 6]] * bs)
    tokens = torch.randint(WIDTH, parents.shape)
    accepted = walk(tokens, parents, torch.randint(WIDTH, parents.shape), DEPTH)
    pools = Pools(bs)
    patch.setattr(commit, "move_accept_tokens_to_target_kvcache", pools.move)
    batch = SimpleNamespace(seq_lens=torch.randint(1, 50, (bs,)), token_to_kv_pool_allocator=None)
    hidden = torch.arange(bs * BUDGET)[:, None].float()
    rows = kind(pools.append).commit(batch, accepted, hidden, pools.window)
    assert rows.shape == (bs, DEPTH + 1)
    return batch, accepted, pools


@pytest.mark.parametrize("kind", [RowCommitter, FixedShapeCommitter])
@pytest.mark.parametrize("seed", range(12))
def test_slot_of_a_committed_token_holds_its_node(
    kind: type, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, accepted, pools = committed(kind, seed, monkeypatch)
    expected = {}
    for request, path in enumerate(accepted.accept_index.tolist()):
        for depth, node in enumerate(node for node in path if node >= 0):
            slot = int(pools.window[request, depth])
            assert pools.target[slot] == pools.window[request, node]
            expected[slot] = request * BUDGET + node, int(batch.seq_lens[request]) + depth
    assert pools.head == expected
    assert len(expected) == accepted.accept_lens.sum()


def test_runs_of_every_length_were_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = set()
    for seed in range(12):
        lens |= set(committed(RowCommitter, seed, monkeypatch)[1].accept_lens.tolist())
    assert len(lens) > 2


@pytest.mark.parametrize(("device", "parents"), [("cuda", 1), ("cpu", 0)])
def test_a_gpu_keeps_the_hosts_writer_and_its_scales(
    device: str, parents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, scales = [], []
    monkeypatch.setattr(
        DFlashWorkerV2, "_append_target_hidden_sequential", lambda self, *given: calls.append(given)
    )
    attn = SimpleNamespace(attn=SimpleNamespace(k_scale=0.5, v_scale=0.25))
    pool = SimpleNamespace(set_kv_buffer=lambda *given: scales.append(given[-2:]))
    worker = GlanceWorker.__new__(GlanceWorker)
    worker.device, worker.context_kv = device, lambda hidden, positions: [(hidden, hidden)]
    # Properties of the parent read these two.
    monkeypatch.setattr(
        GlanceWorker,
        "draft_model_runner",
        SimpleNamespace(token_to_kv_pool=pool),
        raising=False,
    )
    monkeypatch.setattr(
        GlanceWorker,
        "draft_model",
        SimpleNamespace(layers=[SimpleNamespace(self_attn=attn)]),
        raising=False,
    )
    given = torch.zeros(2, 3), torch.arange(2), torch.arange(2)
    worker._append_target_hidden_sequential(*given)
    assert len(calls) == parents and scales == [(0.5, 0.25)] * (1 - parents)


def test_no_false_word_about_sampling(caplog: pytest.LogCaptureFixture) -> None:
    """The parent logs that it falls back to greedy verification; GLANCE draws with the sampler."""
    worker = GlanceWorker.__new__(GlanceWorker)
    worker.selector = worker.lilicorr = None
    worker._warned_sampling_fallback = False
    reqs = [SimpleNamespace(sampling_params=SamplingParams(temperature=1.0))]
    batch = SimpleNamespace(reqs=reqs, sampling_info=SimpleNamespace(is_all_greedy=False))
    with caplog.at_level(logging.WARNING):
        worker._validate_phase1_sampling_support(batch)
    assert caplog.text == ""
