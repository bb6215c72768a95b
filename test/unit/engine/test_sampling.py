"""What the sampler is handed for a tree: one row a node, adjusted in plain decoding's order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.core.tree import Tree
from sglang.srt.speculative.glance.engine.observe.metrics import PLAIN_REASONS, PlainRounds
from sglang.srt.speculative.glance.engine.round.penalties import OutputCounts, begin
from sglang.srt.speculative.glance.engine.round.sampling import draw, plain_reason

VOCAB, BS, WIDTH = 7, 2, 3
PROMPT_LEN = 4


@dataclass
class Request:
    sampling_params: SamplingParams
    output_ids: list[int]
    custom_logit_processor: str | None = None
    grammar: Any = None

    def __post_init__(self) -> None:
        self.origin_input_ids = [0] * PROMPT_LEN
        self.eos_token_ids = {6}
        self.tokenizer = SimpleNamespace(eos_token_id=6, additional_stop_token_ids=None)


class Recorder:
    """Stands for SGLang's sampler: keeps what it is given, draws by seed and position."""

    def __call__(self, output, info, return_logprob, top_nums, token_ids, positions):
        self.logits, self.info, self.positions = output.next_token_logits.clone(), info, positions
        output.next_token_logits.zero_()
        seeds = info.sampling_seed if info.sampling_seed is not None else torch.zeros(BS * WIDTH)
        return ((seeds * 31 + positions * 7) % VOCAB).to(torch.int32)

    def _preprocess_logits(self, logits, info):
        assert info.has_custom_logit_processor and logits.shape == (BS, VOCAB)
        return logits + 100


def info(**fields: Any) -> SamplingBatchInfo:
    rows = torch.arange(1.0, BS + 1)
    given = {"is_all_greedy": False, "is_any_greedy": False, "need_top_p_sampling": False}
    given |= {"need_top_k_sampling": False, "need_min_p_sampling": False, "vocab_size": VOCAB}
    given |= {"temperatures": rows[:, None], "top_ps": rows, "top_ks": rows, "min_ps": rows}
    return SamplingBatchInfo(**given | fields)


def requests(*asked: dict) -> list[Request]:
    return [Request(SamplingParams(**each), [5]) for each in asked]


TREE = Tree(
    torch.tensor([[5, 1, 1], [5, 2, 3]]),
    torch.tensor([[-1, 0, 1], [-1, 0, 0]]),
    torch.tensor([[0, 1, 2], [0, 1, 1]]),
    None,
)
POSITIONS = (PROMPT_LEN + TREE.depths).view(-1)


def run(reqs: list[Request], sampling: SamplingBatchInfo, mask: Any = None) -> tuple:
    logits = torch.randn((BS * WIDTH, VOCAB), generator=torch.manual_seed(0))
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    batch = SimpleNamespace(
        reqs=reqs, sampling_info=sampling, req_pool_indices=torch.arange(1, BS + 1)
    )
    counts, sampler = OutputCounts(4, VOCAB, 2, torch.device("cpu")), Recorder()
    first_prefill = [dataclasses.replace(req, output_ids=[]) for req in reqs]
    begin(SimpleNamespace(reqs=first_prefill, req_pool_indices=batch.req_pool_indices), counts)
    tokens = draw(output, batch, TREE, POSITIONS, counts, mask, sampler)
    return logits, output.next_token_logits, sampler, tokens


def test_rows_follow_their_requests_and_are_left_for_log_probabilities() -> None:
    logits, kept, sampler, tokens = run(requests({}, {}), info())
    assert torch.equal(sampler.logits, logits) and torch.equal(kept, logits)
    for field in ("temperatures", "top_ps", "top_ks", "min_ps"):
        assert getattr(sampler.info, field).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    assert tokens.dtype == torch.int64 and tokens.shape == (BS, WIDTH)


def test_a_seed_draws_at_a_node_what_it_draws_there_in_plain_decoding() -> None:
    """Plain decoding keys a draw by the seed and the index of the last token."""
    seeds = torch.tensor([3, 8])
    *_, tokens = run(requests({}, {}), info(sampling_seed=seeds))
    for row, depths in enumerate(TREE.depths.tolist()):
        expected = [(int(seeds[row]) * 31 + (PROMPT_LEN + d) * 7) % VOCAB for d in depths]
        assert tokens[row].tolist() == expected


class Mask:
    """Stands for a grammar's: at every node one token is out."""

    def apply(self, logits: torch.Tensor) -> None:
        assert logits.shape == (BS * WIDTH, VOCAB)
        logits[:, 2] = float("-inf")


def test_penalties_then_grammar_then_bias_then_processors() -> None:
    bias = torch.zeros((BS, VOCAB))
    bias[:, 1] = 4.0
    bias[:, 2] = 50.0  # cannot bring back what the grammar rules out
    sampling = info(logit_bias=bias, has_custom_logit_processor=True)
    reqs = requests({"repetition_penalty": 2.0}, {})
    logits, kept, sampler, _ = run(reqs, sampling, Mask())
    expected = logits.view(BS, WIDTH, VOCAB).clone()
    seen = [[5], [5, 1], [5, 1]]  # along each node's path
    for node, tokens in enumerate(seen):
        for token in tokens:
            value = expected[0, node, token]
            expected[0, node, token] = value * 2 if value < 0 else value / 2
    expected[:, :, 2] = float("-inf")
    expected += bias[:, None]
    expected[:, 0] += 100
    torch.testing.assert_close(kept.view_as(expected), expected)
    torch.testing.assert_close(sampler.logits.view_as(expected), expected)
    given = sampler.info
    assert not given.has_custom_logit_processor and given.logit_bias is None


def test_why_a_request_takes_one_token_a_round() -> None:
    free, custom = Request(SamplingParams(), []), Request(SamplingParams(), [], "{...}")
    penalised = Request(SamplingParams(frequency_penalty=1.0, min_new_tokens=3), [])
    assert [plain_reason(req) for req in (free, penalised, custom)] == [
        None,
        None,
        PLAIN_REASONS[0],
    ]


def test_plain_rounds_are_counted_by_reason() -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry, name = CollectorRegistry(), "sglang:glance_plain_rounds_total"
    counter = Counter(name, "d", ["model_name", "reason"], registry=registry)
    rounds = PlainRounds(counter, {"model_name": "m"})
    rounds.count([PLAIN_REASONS[0]] * 3)
    values = [
        registry.get_sample_value(name, {"model_name": "m", "reason": r}) for r in PLAIN_REASONS
    ]
    assert values == [3.0] + [0.0] * (len(PLAIN_REASONS) - 1)


@pytest.mark.parametrize("is_all_greedy", [True, False])
def test_greedy_batches_go_through_the_sampler_too(is_all_greedy: bool) -> None:
    """It mends NaN logits and knows of other devices' argmax."""
    _, _, sampler, _ = run(requests({}, {}), info(is_all_greedy=is_all_greedy))
    assert sampler.positions.tolist() == POSITIONS.tolist()
