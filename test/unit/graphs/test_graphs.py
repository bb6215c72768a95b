"""CUDA graphs of verify and of the draft pass, without a GPU: their inputs and their replay."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.engine.round import draft
from sglang.srt.speculative.glance.engine.round.draft import BlockDrafter, top_marginals
from sglang.srt.speculative.glance.engine.round.graphs import (
    GlanceVerifyGraphRunner,
    GraphMarginals,
    use_verify_graphs,
)

CONFIG = GlanceConfig(block=4, budget=6, topk=3, taps=(0, 1), mask_token_id=7)
VOCAB, PADDED_VOCAB, HIDDEN = 11, 16, 8


@pytest.fixture
def drafter():
    weight = torch.randn(PADDED_VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))
    weight[VOCAB:] = 100.0  # padding rows, which would win every top-k if the drafter kept them
    lm_head = SimpleNamespace(org_vocab_size=VOCAB)
    processor = SimpleNamespace(_compute_lm_head=lambda hidden, head: hidden.abs() @ weight.T)
    target = SimpleNamespace(
        model=SimpleNamespace(
            get_input_embeddings=lambda: torch.nn.Embedding(VOCAB, HIDDEN),
            lm_head=lm_head,
            logits_processor=processor,
        ),
        device="cpu",
    )
    draft_runner = SimpleNamespace(model=SimpleNamespace())
    return BlockDrafter(CONFIG, target, draft_runner)


def test_target_runner_instance_gets_the_masked_runner():
    runner, other = SimpleNamespace(), SimpleNamespace()
    use_verify_graphs(runner)
    assert runner._decode_cuda_graph_runner_cls() is GlanceVerifyGraphRunner
    assert not hasattr(other, "_decode_cuda_graph_runner_cls")


def test_capture_takes_a_mask_the_tree_width_and_full_hidden_states():
    runner = GlanceVerifyGraphRunner.__new__(GlanceVerifyGraphRunner)
    runner.captured_req_width = CONFIG.budget
    runner.buffers = SimpleNamespace(custom_mask=torch.ones(36, dtype=torch.bool))
    spec_info = runner.get_spec_info(num_tokens=2 * CONFIG.budget)
    assert spec_info.custom_mask is runner.buffers.custom_mask
    assert spec_info.draft_token_num == spec_info.num_tokens_per_req == CONFIG.budget
    assert spec_info.capture_hidden_mode == CaptureHiddenMode.FULL
    assert spec_info.tree_topk == -1
    assert spec_info.is_verify_input()


def test_captured_marginals_equal_the_eager_marginals(drafter):
    hidden = torch.randn(3 * CONFIG.block, HIDDEN, generator=torch.Generator().manual_seed(1))
    tail = GraphMarginals(drafter, max_bs=5)
    addresses = tail.ids.data_ptr(), tail.logprobs.data_ptr()
    tail(hidden)
    eager, replayed = drafter.marginals(hidden), tail.read(3)
    assert torch.equal(replayed.ids, eager.ids)
    assert torch.equal(replayed.logprobs, eager.logprobs)
    assert (tail.ids.data_ptr(), tail.logprobs.data_ptr()) == addresses


def test_marginals_skip_the_root_and_the_padded_vocabulary(drafter):
    hidden = torch.randn(2 * CONFIG.block, HIDDEN, generator=torch.Generator().manual_seed(2))
    ids, logprobs = drafter.marginals(hidden)
    assert ids.shape == logprobs.shape == (2, CONFIG.block - 1, CONFIG.topk)
    assert ids.max() < VOCAB
    changed = hidden.view(2, CONFIG.block, HIDDEN).clone()
    changed[:, 0] = 0
    assert torch.equal(drafter.marginals(changed.view(-1, HIDDEN)).ids, ids)


def test_propose_reads_the_replay_only_when_a_graph_ran(drafter):
    hidden = torch.randn(CONFIG.block, HIDDEN, generator=torch.Generator().manual_seed(3))
    drafter.graph_marginals = GraphMarginals(drafter, max_bs=1)
    drafter.graph_marginals.ids.fill_(-5)
    drafter._forward_batch = lambda *_: None
    for ran_graph in (False, True):
        result = SimpleNamespace(
            can_run_graph=ran_graph, logits_output=SimpleNamespace(hidden_states=hidden)
        )
        drafter.runner.forward = lambda _, result=result: result
        ids = drafter.propose(None, torch.zeros(1, dtype=torch.int64), None).ids
        assert bool((ids == -5).all()) is ran_graph


class OnGpu(torch.Tensor):
    """A CPU tensor with is_cuda = True; the kernels run in Triton's interpreter."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


def test_top_marginals_splits_many_rows(monkeypatch):
    logits = torch.randn(11, 40)
    unsplit = top_marginals(logits, 3)
    sizes = []
    original = draft._top_of_rows
    monkeypatch.setattr(draft, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(
        draft, "_top_of_rows", lambda rows, k: sizes.append(len(rows)) or original(rows, k)
    )
    parts = top_marginals(logits, 3)
    assert sizes == [4, 4, 3]
    for part, expected in zip(parts, unsplit, strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize("topk", draft.TILED_TOPK)
def test_sglangs_tiled_kernel_gives_the_same_marginals(topk, monkeypatch):
    vocab = draft.TILED_VOCAB + 3
    logits = torch.randn(2, vocab, generator=torch.Generator().manual_seed(topk)).bfloat16()
    expected_ids, expected = top_marginals(logits, topk)
    monkeypatch.setattr(draft, "_top_of_rows", None)
    ids, logprobs = top_marginals(logits.as_subclass(OnGpu), topk)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    same = expected_ids == ids  # the order of equal bfloat16 logits may differ
    assert torch.equal(logits.gather(1, ids)[~same], logits.gather(1, expected_ids)[~same])
    assert all(len(set(row)) == topk for row in ids.tolist())


def test_top_marginals_against_softmax():
    logits = torch.randn(5, 9, dtype=torch.bfloat16)
    ids, logprobs = top_marginals(logits, 4)
    dense = torch.log_softmax(logits.float(), dim=-1)
    torch.testing.assert_close(logprobs, dense.gather(1, ids), rtol=0, atol=1e-6)
    best = dense.sort(dim=-1, descending=True).values[:, :4]
    torch.testing.assert_close(logprobs, best, rtol=0, atol=1e-6)
