"""A round of the worker on a GPU never waits for the device: neither for a value nor for a copy.

PyTorch's fake tensors stand for a GPU: they have a device, shapes and types, but no values, so
whatever needs a value on the host raises. A copy between host and device that would block raises
too. SGLang's own verify path runs for real; where its kernels are launched, torch stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.glance.shipped import READER
from sglang.kernels.ops.speculative.lilicorr import _topk_lse_torch
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.layers.logits_processor import LogitsProcessorOutput, SamplingMaskOutput
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.runtime_context import publish, reset_context
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.core import tree as twins
from sglang.srt.speculative.glance.engine import worker as worker_module
from sglang.srt.speculative.glance.engine.observe import round_log
from sglang.srt.speculative.glance.engine.observe.metrics import NoMetrics
from sglang.srt.speculative.glance.engine.observe.round_log import RoundLog
from sglang.srt.speculative.glance.engine.observe.watch import AcceptWatch
from sglang.srt.speculative.glance.engine.round import (
    commit,
    draft,
    inputs,
    mrope,
    penalties,
    verify,
    window,
)
from sglang.srt.speculative.glance.engine.round.draft import BlockDrafter
from sglang.srt.speculative.glance.engine.round.inputs import GlanceDraftInput
from sglang.srt.speculative.glance.engine.round.verify import TreeVerifier
from sglang.srt.speculative.glance.engine.round.window import Window
from sglang.srt.speculative.glance.engine.worker import GlanceWorker
from sglang.srt.speculative.glance.kernels import cpu_ops as cpu
from sglang.srt.speculative.glance.kernels.select import ops_for, warm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CONFIG = GlanceConfig(block=4, budget=6, topk=2, taps=(0, 1), mask_token_id=7)
VOCAB, HIDDEN, CONTEXT, ROWS, BS = 32, 8, 64, 5, 2
GPU, HOST_VALUE = torch.device("cuda:0"), 9


class Waited(AssertionError):
    """Something on the host would have waited for the device."""


class NoBlockingCopies(TorchDispatchMode):
    """Copies between host and device have to be asynchronous. Values of the host's own tensors may
    be read: they are all `HOST_VALUE`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "cpu":
            return HOST_VALUE
        with self:  # in inference mode an op comes whole, with the copies inside
            parts = NotImplemented if func.namespace == "prim" else func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        result = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default:
            self._check(args[0].device, result.device, kwargs.get("non_blocking", False))
        elif func is torch.ops.aten.copy_.default:
            blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            self._check(args[1].device, args[0].device, not blocks)
        return result

    def _check(self, source: torch.device, target: torch.device, asynchronous: bool) -> None:
        if source.type != target.type and not asynchronous:
            raise Waited(f"a blocking copy from {source} to {target}")


def request(params: SamplingParams | None = None, processor: str | None = None) -> Req:
    req = Req("r", "", [1] * 9, params or SamplingParams(), eos_token_ids={3}, vocab_size=VOCAB)
    req.tokenizer = SimpleNamespace(eos_token_id=3, additional_stop_token_ids=None)
    req.custom_logit_processor = processor
    return req


class Fields(SimpleNamespace):
    """What a round reads of one of SGLang's objects; every other field is absent."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


def sampling(**fields: Any) -> SamplingBatchInfo:
    rows = {name: empty(BS, dtype=torch.float32) for name in ("top_ps", "top_ks", "min_ps")}
    given = {"is_all_greedy": False, "is_any_greedy": False, "need_top_p_sampling": True}
    given |= {"need_top_k_sampling": True, "need_min_p_sampling": False, "vocab_size": VOCAB}
    temperatures = empty(BS, 1, dtype=torch.float32)
    return SamplingBatchInfo(temperatures=temperatures, **rows, **given | fields)


def batch_of(reqs: list[Req], deltas: tuple[int | None, ...], **fields: Any) -> Fields:
    pictures = [
        None if d is None else SimpleNamespace(mrope_position_delta=torch.tensor([[d]]))
        for d in deltas
    ]
    given = {
        "spec_info": GlanceDraftInput.create(empty(BS), empty(BS)),
        "seq_lens": empty(BS),
        "seq_lens_cpu": torch.tensor([9, 9]),
        "req_pool_indices": empty(BS),
        "forward_mode": ForwardMode.DECODE,
        "multimodal_inputs": pictures,
        "sampling_info": sampling(),
        "model_config": SimpleNamespace(vocab_size=VOCAB),
        "device": GPU,
        "return_hidden_states_mode": CaptureHiddenMode.NULL,
        "has_grammar": False,
    }
    return Fields(reqs=reqs, **given | fields)


class Plan:
    def bind(self, *args: Any, **keys: Any) -> None:
        pass


def runner(**fields: Any) -> Fields:
    """A ModelRunner, as far as a round and SGLang's verify preparation read one."""
    weight = empty(VOCAB, HIDDEN, dtype=torch.float32)
    processor = SimpleNamespace(_compute_lm_head=lambda hidden, head: hidden @ weight.T)
    given = {
        "device": GPU,
        "model": SimpleNamespace(
            get_input_embeddings=lambda: None,
            lm_head=SimpleNamespace(org_vocab_size=VOCAB),
            logits_processor=processor,
        ),
        "model_config": Fields(vocab_size=VOCAB, model_is_mrope=True, context_len=CONTEXT),
        "req_to_token_pool": SimpleNamespace(
            req_to_token=empty(ROWS, CONTEXT + 4 + CONFIG.window, dtype=torch.int32)
        ),
        "kv_index_translator": SimpleNamespace(
            plan=lambda **_: Plan(), own_plan=lambda forward_batch: Plan()
        ),
        "attn_backend": SimpleNamespace(
            max_context_len=CONTEXT,
            verify_mask=VerifyMask(
                empty(4 * 6 * (CONTEXT + 6), dtype=torch.bool), TreeMaskMode.FULL_MASK, 4
            ),
        ),
        "spec_algorithm": SimpleNamespace(is_standalone=lambda: False),
        "ngram_embedding_manager": SimpleNamespace(enabled=False),
        "is_draft_worker": False,
        "sampler": Sampler(),
    }
    return Fields(**given | fields)


class Sampler:
    """Stands for SGLang's, which plain decoding calls with the same arguments."""

    def __call__(self, output: Any, info: Any, *_: Any) -> torch.Tensor:
        if info.sampling_mask_batch_indices is not None:
            rows = len(info.sampling_mask_batch_indices)
            output.sampling_mask_output = SamplingMaskOutput(
                empty(rows, 4), empty(rows), empty(rows), empty(rows, 4), empty(rows)
            )
        return output.next_token_logits.argmax(-1)

    def _preprocess_logits(self, logits: torch.Tensor, info: Any) -> torch.Tensor:
        return logits


def verify_pass(batch: Any, forward_batch: Any, is_verify: bool) -> SimpleNamespace:
    rows = BS * CONFIG.budget
    assert forward_batch.input_ids.shape == (rows,)
    assert forward_batch.mrope_positions.shape == (3, rows)
    logits = empty(rows, VOCAB, dtype=torch.float32)
    hidden = empty(rows, 2 * HIDDEN, dtype=torch.float32)
    output = LogitsProcessorOutput(next_token_logits=logits, hidden_states=hidden)
    return SimpleNamespace(logits_output=output)


def draft_pass(forward_batch: Any) -> SimpleNamespace:
    hidden = empty(BS * CONFIG.block, HIDDEN, dtype=torch.float32)
    return SimpleNamespace(can_run_graph=False, logits_output=SimpleNamespace(hidden_states=hidden))


def gather(req_pool_indices, req_to_token, start_offset, batch_size, draft_token_num, device):
    columns = start_offset[:, None] + torch.arange(draft_token_num, device=device)
    return req_to_token[req_pool_indices[:, None], columns].to(torch.int64).flatten()


def send(values: list, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """SGLang's `async_h2d`, but for the pinned memory, which needs a driver."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def never(*_: Any) -> None:
    raise Waited("synchronised")


def written_head(**given: Any) -> None:
    shapes = {name: tuple(value.shape) for name, value in given.items()}
    rows = BS * CONFIG.block
    assert shapes == {
        "target_hidden": (rows, 2 * HIDDEN),
        "cache_loc": (rows,),
        "cache_loc_2d": (BS, CONFIG.block),
        "positions": (rows,),
        "commit_lens": (BS,),
    }


@pytest.fixture(scope="module")
def published() -> Iterator[None]:
    """SGLang's own configuration, which its verify path reads."""
    args = ServerArgs(model_path=str(READER), device="cuda", mem_fraction_static=0.5)
    args.resolve_once()
    publish(args, role="scheduler")
    yield
    reset_context()


@pytest.fixture
def worker(
    published: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GlanceWorker]:
    monkeypatch.setattr(cpu, "available", lambda: False)
    monkeypatch.setattr(window, "assign_extend_cache_locs_uniform_func", gather)
    for module in (mrope, penalties, worker_module):
        monkeypatch.setattr(module, "async_h2d", send)
    monkeypatch.setattr(draft, "lilicorr_topk_lse", _topk_lse_torch)
    monkeypatch.setattr(commit, "move_accept_tokens_to_target_kvcache", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", never)
    log = RoundLog(tmp_path / "rounds.jsonl", "cpu", CONFIG)
    log.clock = round_log.HostClock()
    log.clock.waits = True  # as on a GPU: what `end` is given is handed over, not read
    twins.layout.cache_clear()
    with FakeTensorMode():
        made = GlanceWorker.__new__(GlanceWorker)
        target, draft_runner = runner(), runner(is_draft_worker=True, forward=draft_pass)
        made.config, made.rounds, made.plain_rounds = CONFIG, log, NoMetrics()
        made.watch = AcceptWatch("head")
        made.ops = ops_for(torch.device("cpu"))
        warm(made.ops, CONFIG.block, CONFIG.topk, CONFIG.budget, GPU)
        made.window = Window(CONFIG.window, CONTEXT, target.req_to_token_pool.req_to_token)
        made.drafter = BlockDrafter(CONFIG, target, draft_runner)
        target_worker = SimpleNamespace(model_runner=target, forward_batch_generation=verify_pass)
        made.verifier = TreeVerifier(CONFIG, target_worker, made.ops)
        made.committer = commit.FixedShapeCommitter(written_head)
        with NoBlockingCopies():
            yield made
    twins.layout.cache_clear()


def play(worker: GlanceWorker, batch: Fields) -> Any:
    """A prefill and a round."""
    worker.verifier.begin(batch)
    return worker.decode_round(batch, on_publish=lambda lens: None)


PENALISED = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.2, min_new_tokens=4)
BATCHES = {
    "text": lambda: batch_of([request(), request()], (None, None)),
    "picture and text": lambda: batch_of([request(), request()], (-3, None)),
    "lengths on the device alone": lambda: batch_of(
        [request(), request()],
        (-3, None),
        seq_lens_cpu=None,
        spec_info=reserved(GlanceDraftInput.create(empty(BS), empty(BS))),
    ),
    "greedy": lambda: batch_of([request()] * 2, (1, 2), sampling_info=sampling(is_all_greedy=True)),
    "penalties": lambda: batch_of([request(PENALISED), request()], (None, None)),
    "logit bias": lambda: batch_of(
        [request()] * 2,
        (None, None),
        sampling_info=sampling(logit_bias=empty(BS, VOCAB, dtype=torch.float32)),
    ),
    "one token a round": lambda: batch_of(
        [request(processor="{}"), request()],
        (None, None),
        sampling_info=sampling(has_custom_logit_processor=True),
    ),
    "sampling masks": lambda: batch_of(
        [request()] * 2,
        (None, None),
        sampling_info=sampling(
            sampling_mask_batch_indices=empty(1), sampling_support_logprobs_capture_indices=empty(1)
        ),
    ),
    "log-probabilities": lambda: batch_of(
        [request()] * 2, (None, None), return_logprob=True, top_logprobs_nums=[3, 0]
    ),
}


def reserved(draft_input: GlanceDraftInput) -> GlanceDraftInput:
    draft_input.nxt_kv_lens_cpu = torch.tensor([20, 20], dtype=torch.int32)
    return draft_input


@pytest.mark.parametrize("kind", BATCHES)
def test_a_round_waits_for_nothing(worker: GlanceWorker, kind: str) -> None:
    result = play(worker, BATCHES[kind]())
    assert result.next_token_ids.shape == (BS * CONFIG.block,)
    assert result.next_token_ids.device == result.new_seq_lens.device == GPU


def test_slots_are_reserved_without_waiting(
    worker: GlanceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = {}
    monkeypatch.setattr(inputs, "async_h2d", send)
    monkeypatch.setattr(inputs, "get_alloc_reserve_per_decode", lambda: 2 * CONFIG.window)
    monkeypatch.setattr(inputs, "alloc_for_spec_decode", lambda *_, **given: reserved.update(given))
    reqs = [request() for _ in range(BS)]
    for req in reqs:
        req.kv = SimpleNamespace(kv_committed_len=9, kv_allocated_len=10)
    batch = batch_of(
        reqs,
        (None, None),
        batch_size=lambda: BS,
        maybe_evict_swa=lambda: None,
        token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
        req_to_token_pool=worker.drafter.target_runner.req_to_token_pool,
    )
    batch.spec_info.prepare_for_decode(batch)
    assert reserved["num_needed_tokens"] == BS * (9 + 2 * CONFIG.window - 10)
    assert reserved["nxt_kv_lens"].device == reserved["cur_kv_lens"].device == GPU


def read_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Window.room
    monkeypatch.setattr(
        Window, "room", lambda self, lens: original(self, lens) * int(lens.max() > 0)
    )


def rows_by_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit.FixedShapeCommitter, "write_head", commit.RowCommitter.write_head)


def deltas_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    given = verify.GlanceVerifyInput
    monkeypatch.setattr(
        verify,
        "GlanceVerifyInput",
        lambda **fields: given(**fields | {"prepared_mrope_positions": None}),
    )


def blocking_send(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Window.room
    monkeypatch.setattr(
        Window,
        "room",
        lambda self, lens: original(self, lens) + torch.tensor([0] * BS, device=lens.device),
    )


def copied_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Window.room
    monkeypatch.setattr(Window, "room", lambda self, lens: original(self, lens.cpu()).to(GPU))


@pytest.mark.parametrize(
    "plant", [read_a_length, rows_by_mask, deltas_of_the_host, blocking_send, copied_back]
)
def test_a_planted_wait_is_found(
    worker: GlanceWorker, monkeypatch: pytest.MonkeyPatch, plant: Any
) -> None:
    plant(monkeypatch)
    errors = (
        Waited,
        torch._subclasses.fake_tensor.DataDependentOutputException,
        torch._subclasses.fake_tensor.DynamicOutputShapeException,
    )
    with pytest.raises(errors):
        play(worker, BATCHES["picture and text"]())
