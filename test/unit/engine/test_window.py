"""No round reads or writes a slot behind its request's row, up to the end of the context, however
far the host lags; and what the host keeps is never cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache import allocation_sizing
from sglang.srt.plugins import load_plugins
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core.accept import Accepted, shorten
from sglang.srt.speculative.glance.engine.round import inputs, window
from sglang.srt.speculative.glance.engine.round.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.round.window import Window, widen

CONTEXT, REQUESTS = 96, 4
TOPK = 8


def gather(req_pool_indices, req_to_token, start_offset, batch_size, draft_token_num, device):
    """SGLang's kernel in torch: rows lie one after another, and nothing bounds the columns."""
    first = req_pool_indices * req_to_token.shape[1] + start_offset
    places = first[:, None] + torch.arange(draft_token_num)
    return req_to_token.flatten()[places].to(torch.int64).flatten()


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    load_plugins()  # SGLang asks the algorithm what it reserves
    monkeypatch.setattr(window, "assign_extend_cache_locs_uniform_func", gather)
    yield


class Host:
    """A scheduler that hears of a round `lag` rounds late, and its KV bookkeeping. The request
    table has SGLang's own size, and slots of requests that this test does not follow around it."""

    def __init__(
        self, config: GlanceConfig, page: int, lag: int, seed: int, patch: pytest.MonkeyPatch
    ) -> None:
        self.rng = random.Random(seed)
        self.config, self.lag, self.page = config, lag, page
        spec = SimpleNamespace(
            speculative_algorithm="GLANCE",
            speculative_num_steps=1,
            speculative_eagle_topk=config.topk,
        )
        patch.setattr(allocation_sizing, "get_spec", lambda: spec)
        patch.setattr(allocation_sizing, "get_alloc_page_size", lambda: page)
        patch.setattr(allocation_sizing, "max_speculative_num_draft_tokens", lambda: config.window)
        patch.setattr(inputs, "alloc_for_spec_decode", self.allocate)
        row = CONTEXT + allocation_sizing.get_req_to_token_extra_context_len()
        self.table = torch.zeros((REQUESTS + 2, row), dtype=torch.int32)
        self.owners: dict[int, Any] = {}
        self.reqs = [self.request(number + 1) for number in range(REQUESTS)]

    def request(self, pool_row: int) -> SimpleNamespace:
        num_outputs = self.rng.randint(2, 40)
        # SGLang cuts what is asked for to context - 2 - prompt.
        prompt = CONTEXT - 2 - num_outputs - self.rng.choice([0, 0, 0, 1, 5])
        req = SimpleNamespace(
            prompt=prompt, asked=num_outputs, known=0, pool_row=pool_row, decode_batch_idx=0
        )
        req.kv = SimpleNamespace(kv_committed_len=prompt, kv_allocated_len=0)
        self.take(req, -(-prompt // self.page) * self.page)
        return req

    def take(self, req: Any, until: int) -> None:
        assert until <= self.table.shape[1], "reserved past the row"
        fresh = range(len(self.owners) + 1, len(self.owners) + 1 + until - req.kv.kv_allocated_len)
        self.owners |= dict.fromkeys(fresh, req)
        self.table[req.pool_row, req.kv.kv_allocated_len : until] = torch.tensor(list(fresh)).int()
        req.kv.kv_allocated_len = until

    def allocate(self, tree_cache: Any, pool: Any, *, reqs: Any, nxt_kv_lens_cpu: Any, **_) -> None:
        for req, until in zip(reqs, nxt_kv_lens_cpu.tolist(), strict=True):
            self.take(req, until)

    def prepare(self, reqs: list[Any]) -> None:
        batch = SimpleNamespace(
            reqs=reqs,
            batch_size=lambda: len(reqs),
            maybe_evict_swa=lambda: None,
            token_to_kv_pool_allocator=SimpleNamespace(page_size=self.page),
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            req_pool_indices=None,
            tree_cache=None,
            device="cpu",
        )
        GlanceDraftInput.create(torch.zeros(len(reqs)), torch.zeros(len(reqs))).prepare_for_decode(
            batch
        )

    def hear(self, result: dict[int, int]) -> None:
        """Of one round's accepted lengths by pool row."""
        for req in self.reqs:
            if req.pool_row in result and req.known < req.asked:
                req.kv.kv_committed_len += result[req.pool_row]
                req.known += result[req.pool_row]


def serve(host: Host) -> int:
    """Play all requests to their ends; returns the longest prefix that a round began with."""
    config, depth = host.config, host.config.max_depth + 1
    device = Window(config.window, CONTEXT, host.table)
    done = {req.pool_row: 1 for req in host.reqs}  # outputs on the device: the prefill's token
    pending, longest = [], 0
    for req in host.reqs:
        req.known += not host.lag
    prefilled = bool(host.lag)
    while True:
        # SGLang leaves out a request whose next output ends it while a result is outstanding.
        waiting = len(pending) + prefilled if host.lag else 0
        running = [req for req in host.reqs if req.known + (1 if waiting else 0) < req.asked]
        if running:
            host.prepare(running)
            longest = max(longest, play(host, device, running, done, depth, pending))
        if prefilled:
            for req in host.reqs:
                req.known += 1
            prefilled = False
        elif len(pending) > (host.lag if running else 0):
            host.hear(pending.pop(0))
        elif not running:
            return longest


def play(host: Host, device: Window, running: Any, done: Any, depth: int, pending: Any) -> int:
    """One round on the device."""
    rows = torch.tensor([req.pool_row for req in running])
    prefix_lens = torch.tensor([req.prompt + done[req.pool_row] - 1 for req in running])
    slots = device.slots(rows, prefix_lens)
    for req, own in zip(running, slots.tolist(), strict=True):
        assert len(set(own)) == device.width, "a slot twice in a window"
        assert all(host.owners.get(slot) is req for slot in own), "another's slot"
    # Looping answers accept whole runs.
    runs = torch.tensor([host.rng.choice([1, host.rng.randint(1, depth), depth]) for _ in running])
    tokens = torch.zeros((len(running), depth), dtype=torch.int64)
    cut = shorten(Accepted(tokens, runs, tokens, runs), device.room(prefix_lens)).accept_lens
    for req, run, kept in zip(running, runs.tolist(), cut.tolist(), strict=True):
        assert 1 <= kept <= run
        assert kept == run or done[req.pool_row] + kept >= req.asked, "cut what the host keeps"
        done[req.pool_row] += kept
    pending.append({req.pool_row: kept for req, kept in zip(running, cut.tolist(), strict=True)})
    return int(prefix_lens.max())


SHAPES = [(2, 2), (4, 8), (16, 16), (16, 32), (32, 16), (64, 64)]


def config_of(block: int, budget: int) -> GlanceConfig:
    return GlanceConfig(block=block, budget=budget, topk=TOPK, taps=(0,), mask_token_id=1)


@pytest.mark.parametrize("lag", [0, 1], ids=["no overlap", "overlap"])
@pytest.mark.parametrize("page", [1, 2, 16, 64])
@pytest.mark.parametrize("block, budget", SHAPES)
def test_no_window_leaves_its_row(
    monkeypatch: pytest.MonkeyPatch, block: int, budget: int, page: int, lag: int
) -> None:
    for seed in range(4):
        longest = serve(Host(config_of(block, budget), page, lag, seed, monkeypatch))
        assert longest <= CONTEXT


@pytest.mark.parametrize("block, budget", [(16, 16), (16, 32), (64, 64)])
def test_without_the_bounds_a_window_takes_another_requests_slots(
    monkeypatch: pytest.MonkeyPatch, block: int, budget: int
) -> None:
    """As GLANCE was: this is what the bounds are for, and only overlap and page size 1 show it."""
    endless = torch.iinfo(torch.int64).max // 2
    original = Window.__init__

    def unbounded(self: Window, *given: Any) -> None:
        original(self, *given)
        self.longest_prefix = endless

    monkeypatch.setattr(Window, "__init__", unbounded)
    with pytest.raises((AssertionError, IndexError), match=r"slot|out of bounds"):
        for seed in range(12):
            serve(Host(config_of(block, budget), 1, 1, seed, monkeypatch))


def test_the_start_is_bounded_whatever_the_lengths_say() -> None:
    table = torch.arange(3 * 20, dtype=torch.int32).view(3, 20)
    slots = Window(6, 14, table).slots(torch.tensor([0, 1]), torch.tensor([3, 50]))
    assert slots.tolist() == [list(range(3, 9)), list(range(34, 40))]


def test_a_request_table_too_narrow_is_refused_at_start() -> None:
    Window(6, 14, torch.zeros((2, 20), dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"rows of 19 slots.* 14 \+ 6"):
        Window(6, 14, torch.zeros((2, 19), dtype=torch.int32))


@pytest.mark.parametrize(("page", "num_pages"), [(1, 132), (16, 9)])
def test_page_tables_reach_a_window_past_the_context(page: int, num_pages: int) -> None:
    def paged() -> SimpleNamespace:
        return SimpleNamespace(max_context_len=100, max_num_pages=-(-100 // page), page_size=page)

    single, hybrid = paged(), SimpleNamespace(max_context_len=100, prefill_backend=paged())
    hybrid.decode_backend = SimpleNamespace(max_context_len=100)  # reads by indices, as FlashInfer
    for backend in (single, hybrid):
        widen(backend, 32)
    for table in (single, hybrid.prefill_backend):
        assert (table.max_context_len, table.max_num_pages) == (132, num_pages)
    assert hybrid.max_context_len == hybrid.decode_backend.max_context_len == 100
