"""An accepted run ends a request where plain decoding, token by token, would have, and nothing of
the run behind that place reaches the request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.glance.engine.host.stopping import (
    cut_runs,
    settle_as_decided,
    takes_no_token,
    watch_ends_of_grammars,
)

EOS = 9


@pytest.fixture(autouse=True, scope="module")
def hooked():
    """The host's question, answered as in a server."""
    original = Req.update_finish_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Req,
            "update_finish_state",
            lambda req, accepted=1: settle_as_decided(original, req, accepted),
        )
        yield


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


def take(req: Req, run: list[int]) -> list[int]:
    """What the host does with an accepted run, in its order. Returns what is left of it."""
    batch = SimpleNamespace(reqs=[req])

    def resolve(processor: None, result: None, batch: SimpleNamespace) -> list[list[int]]:
        req.kv.kv_committed_len += len(run)
        return [list(run)]

    (kept,) = cut_runs(resolve, None, None, batch)
    assert not req.finished()
    req.output_ids.extend(kept)
    req.update_finish_state(len(kept))
    return kept


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
        take(req, ids[start:end])
        if req.finished():
            break
    # What any reader may see is what the client saw; the last token is in no cache.
    assert list(req.output_ids) == ended(req)[1]
    assert req.kv.kv_committed_len == len(req.output_ids)
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
        take(req, [token])
    assert not req.finished()
    req.to_finish = FINISH_ABORT("left")
    run = ids[start : start + size]
    take(req, run)
    assert req.to_finish is None
    reason, output = ended(req)
    assert reason["type"] == "abort"
    assert output == whole[: start + size]


def reasoning_tokens(ids: list[int], cuts: list[int], limit: int) -> int:
    """The host counts what is left of each run; reasoning ends by the tokens 1, 2."""
    req = request([], limit)
    for start, end in zip([0, *cuts], [*cuts, len(ids)]):
        req.update_reasoning_tokens(take(req, ids[start:end]), [1, 2])
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
    def plain(req: Req, token: int) -> None:
        req.output_ids.append(token)
        req.update_finish_state()
        req.grammar.accept_token(token)

    @staticmethod
    def glance(req: Req, token: int) -> None:
        watch_ends_of_grammars([req])
        req.grammar.accept_token(token)
        take(req, [token])


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "ids", [[0, EOS, 3, 4, 5, 6], [1, 2, 3, 4, 5, EOS], [EOS, 3, 4, 5, 6, 7], [0, EOS, EOS, EOS, 1]]
)
def test_an_ignored_eos_ends_a_grammar_when_plain_decoding_notices(ids, keeps):
    ends = []
    # Every place but the first, which is a prefill's, may be another prefill after a retraction.
    for prefills in (range(len(ids)), {0}, {0, 1}, {0, 2}, {0, 2, 3}):
        req = request([], 6)
        req.sampling_params.ignore_eos = True
        req.grammar = Grammar(keeps)
        for place, token in enumerate(ids):
            (Round.plain if place in prefills else Round.glance)(req, token)
            req.grammar.finished = req.finished()
            if req.finished():
                break
        ends.append(ended(req))
    assert all(end == ends[0] for end in ends)
    if keeps and EOS in ids[:4]:
        assert len(ends[0][1]) == ids.index(EOS) + 2


def test_an_id_outside_the_vocabulary_ends_the_run():
    req = request([], 8)
    assert take(req, [0, 77, 2, 3]) == [0, EOS]  # the host puts EOS in its place
    assert req.finished_reason.to_json()["matched"] == "NaN happened"


def test_a_run_that_the_grammar_could_not_read_is_the_hosts_to_end():
    req = request([], 8)
    req.to_finish = FINISH_ABORT("not in the grammar")
    assert take(req, []) == []
    assert req.finished_reason.to_json()["message"] == "not in the grammar"


def test_a_request_that_is_over_keeps_its_end():
    req = request([], 8)
    take(req, [0, EOS, 2])
    batch = SimpleNamespace(reqs=[req])
    assert cut_runs(lambda *_: [[4, 5]], None, None, batch) == [[4, 5]]  # under overlap
    assert ended(req) == ({"type": "stop", "matched": EOS}, [0, EOS])


@pytest.mark.parametrize(("limit", "none"), [(0, True), (1, False)])
def test_only_a_limit_of_zero_takes_no_token(limit, none):
    assert takes_no_token(request([], limit)) is none
