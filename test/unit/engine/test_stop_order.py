"""An accepted run ends a request where plain decoding, token by token, would have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.engine.adjustments import (
    reasoning_ends_with_answer,
    stop_in_order,
    watch_ends_of_grammars,
)

EOS = 9


class Letters:
    """A tokenizer of ten ids, one letter each."""

    eos_token_id = EOS
    additional_stop_token_ids = None

    def decode(self, ids) -> str:
        return "".join("abcdefghi$"[i] for i in ids)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return ["abcdefghi$".index(c) for c in text]


def request(stops: list[str], limit: int) -> Req:
    params = SamplingParams(stop=stops, max_new_tokens=limit)
    params.normalize(Letters())
    req = Req("r", "", [0], params, eos_token_ids={EOS}, vocab_size=10)
    req.tokenizer = Letters()
    return req


def ended(req: Req) -> tuple:
    """What a client sees: how it ended, after which tokens."""
    if not req.finished():
        return None, list(req.output_ids)
    return req.finished_reason.to_json(), list(req.output_ids)[: req.finished_len]


def run_plain(ids: list[int], stops: list[str], limit: int) -> tuple:
    req = request(stops, limit)
    for token in ids:
        req.output_ids.append(token)
        req.update_finish_state()
        if req.finished():
            break
    return ended(req)


def run_accepted(ids: list[int], cuts: list[int], stops: list[str], limit: int) -> tuple:
    req = request(stops, limit)
    for start, end in zip([0, *cuts], [*cuts, len(ids)]):
        req.output_ids.extend(ids[start:end])
        stop_in_order(Req.update_finish_state, req, end - start)
        if req.finished():
            break
    return ended(req)


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    cut=st.integers(0, 14),
    stops=st.lists(st.text("abcdefghi", min_size=1, max_size=3), min_size=1, max_size=3),
    limit=st.integers(1, 14),
)
def test_a_run_ends_where_plain_decoding_ends(ids, cut, stops, limit):
    cuts = [cut] if cut < len(ids) else []
    assert run_accepted(ids, cuts, stops, limit) == run_plain(ids, stops, limit)


@pytest.mark.parametrize(
    ("ids", "stops", "kept"),
    [
        ([0, 1, 2, 3], ["d", "b"], 2),  # the later stop is listed first
        ([0, EOS, 2, 3], ["d"], 2),  # a stop string behind the end of the text
        ([0, 1, 2, 3], ["ad"], 4),
    ],
)
def test_the_earliest_stop_counts(ids, stops, kept):
    _, output = run_accepted(ids, [], stops, 8)
    assert output == ids[:kept]


@given(
    ids=st.lists(st.integers(0, 9), min_size=2, max_size=14),
    first=st.integers(0, 14),
    size=st.integers(1, 6),
    stops=st.lists(st.text("abcdefghi", min_size=1, max_size=3), max_size=2),
    limit=st.integers(1, 14),
)
def test_an_aborted_answer_is_the_start_of_plain_decodings(ids, first, size, stops, limit):
    _, whole = run_plain(ids, stops, limit)
    start = min(first, len(whole) - 1)  # not ended before the abort comes
    req = request(stops, limit)
    for token in ids[:start]:
        req.output_ids.append(token)
        stop_in_order(Req.update_finish_state, req, 1)
    assert not req.finished()
    req.to_finish = FINISH_ABORT("left")
    run = ids[start : start + size]
    req.output_ids.extend(run)
    stop_in_order(Req.update_finish_state, req, len(run))
    reason, output = ended(req)
    assert reason["type"] == "abort"
    assert output == whole[: start + size]


def reasoning_tokens(ids: list[int], cuts: list[int], limit: int) -> int:
    """Counted before the host looks for the end; reasoning ends by the tokens 1, 2."""
    req = request([], limit)
    for start, end in zip([0, *cuts], [*cuts, len(ids)]):
        req.output_ids.extend(ids[start:end])
        req.update_reasoning_tokens(ids[start:end], [1, 2])
        reasoning_ends_with_answer(Req.update_finish_state, req, end - start)
        if req.finished():
            break
    return req.reasoning_tokens


@given(
    ids=st.lists(st.sampled_from([1, 2, 3, EOS]), min_size=1, max_size=14),
    cut=st.integers(1, 14),
    limit=st.integers(1, 14),
)
def test_reasoning_tokens_of_an_accepted_run_end_with_the_answer(ids, cut, limit):
    cuts = [cut] if cut < len(ids) else []
    assert reasoning_tokens(ids, cuts, limit) == reasoning_tokens(ids, range(1, len(ids)), limit)


class Grammar:
    """Ends at the first EOS it reads; ``keeps`` says whether it knows that afterwards."""

    def __init__(self, keeps: bool) -> None:
        self.keeps, self.ended, self.finished = keeps, False, False

    def accept_token(self, token: int) -> None:
        if token == EOS:
            self.ended, self.finished = self.keeps, True

    def is_terminated(self) -> bool:
        return self.ended or self.finished


class Round:
    """When the grammar reads a token: after the question of plain decoding, before that of a round,
    and after it again for the token of a prefill."""

    @staticmethod
    def plain(req: Req) -> None:
        stop_in_order(Req.update_finish_state, req, 1)  # installed there too
        req.grammar.accept_token(req.output_ids[-1])

    @staticmethod
    def glance(req: Req) -> None:
        if len(req.output_ids) == 1:
            return Round.plain(req)
        watch_ends_of_grammars([req])
        req.grammar.accept_token(req.output_ids[-1])
        stop_in_order(Req.update_finish_state, req, 1)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "ids", [[0, EOS, 3, 4, 5, 6], [1, 2, 3, 4, 5, EOS], [EOS, 3, 4, 5, 6, 7], [0, EOS, EOS, EOS, 1]]
)
def test_an_ignored_eos_ends_a_grammar_when_plain_decoding_notices(ids, keeps):
    ends = []
    for take in (Round.plain, Round.glance):
        req = request([], 6)
        req.sampling_params.ignore_eos = True
        req.grammar = Grammar(keeps)
        for token in ids:
            req.output_ids.append(token)
            take(req)
            req.grammar.finished = req.finished()
            if req.finished():
                break
        ends.append(ended(req))
    assert ends[0] == ends[1]
    if keeps and EOS in ids[:4]:
        assert len(ends[0][1]) == ids.index(EOS) + 2
