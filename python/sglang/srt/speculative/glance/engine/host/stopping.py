"""Where a request ends, decided once a round, before any part of the host sees the accepted run.

The host appends a whole run to ``Req.output_ids`` and remembers where to stop reading in
``finished_len``, which not all of its readers look at: the next turn of a session, the K/V that a
request owns and the count of reasoning tokens are among those that do not. A run of GLANCE holds
nothing behind its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """What a run did to its request: the host's ``finished_reason`` and ``finished_len``, both None
    where the request goes on."""

    reason: Any
    length: int | None


def cut_runs(original: Callable, processor: Any, result: Any, batch: Any) -> list[list[int]]:
    """Each request's accepted run, up to the token that ends the request."""
    runs = original(processor, result, batch)
    return [
        run if req.finished() or req.is_retracted else _cut(req, run)
        for req, run in zip(batch.reqs, runs, strict=True)
    ]


def _cut(req: Any, run: list[int]) -> list[int]:
    if not run:  # the grammar could not read its first token: the host ends the request
        return run
    kept = _until_the_end(req, run)
    req.kv.kv_committed_len -= len(run) - len(kept)
    return kept


def _until_the_end(req: Any, run: list[int]) -> list[int]:
    """Ask the host where ``run`` ends. Leaves ``req`` as it was, and the verdict for
    :func:`settle_as_decided`.

    Stop strings are asked for token by token, as in plain decoding: of a whole run the host looks
    for them before EOS, and takes the first of the request's list that occurs anywhere, even
    behind an earlier stop.
    """
    num_before, abort, grammar = len(req.output_ids), req.to_finish, req.grammar
    stood = vars(req).pop("grammar_had_ended", None)
    strings = req.sampling_params.stop_strs or req.sampling_params.stop_regex_strs
    size = 1 if strings else len(run)
    req.to_finish = None  # an aborted answer is the start of plain decoding's too
    for end in range(size, len(run) + 1, size):
        req.output_ids.extend(run[end - size : end])
        # The grammar has read the whole run already.
        req.grammar = grammar if end == len(run) and stood is not False else None
        req.update_finish_state(size)
        if req.finished():
            break
    if stood is not None:
        grammar.finished = req.finished()  # what the host sets next
        req.grammar_had_ended = grammar.is_terminated()
    req.verdict = Verdict(abort or req.finished_reason, req.finished_len)
    kept = list(req.output_ids[num_before : req.finished_len])  # ids as the host mended them
    del req.output_ids[num_before:]
    req.finished_reason = req.finished_len = None
    req.to_finish, req.grammar = abort, grammar
    return kept


def settle_as_decided(original: Callable, req: Any, new_accepted_len: int = 1) -> None:
    """The host's question whether a request has ended, answered by the verdict on its run. A
    request has none of its first token."""
    verdict = vars(req).pop("verdict", None)
    if verdict is None or new_accepted_len == 0:
        vars(req).pop("grammar_had_ended", None)
        return original(req, new_accepted_len)
    req.finished_reason, req.finished_len = verdict
    req.to_finish = None


def watch_ends_of_grammars(reqs: Sequence[Any]) -> None:
    """Ask for this of requests that ignore EOS, from the first round after a prefill on.

    Plain decoding asks before the grammar reads the token, a round of GLANCE after it: a grammar
    ended by an ignored EOS ends the request a token later, or, where its backend forgets that it
    has ended, never.
    """
    for req in reqs:
        watched = req.grammar is not None and req.sampling_params.ignore_eos
        if watched and not hasattr(req, "grammar_had_ended"):
            req.grammar_had_ended = req.grammar.is_terminated()


def keep_what_is_written(original: Callable, sessions: Any, req: Any) -> bool:
    """A streaming session keeps its turn's K/V for the next one. The host counts the turn's last
    token, whose K/V the next round would have written."""
    written = req.kv.kv_committed_len
    kept = original(sessions, req)
    if kept:
        record = sessions.slots[req.session.session_id].kv
        record.kv_committed_len = min(record.kv_committed_len, written)
    return kept


def takes_no_token(req: Any) -> bool:
    """``Req.is_prefill_only`` for GLANCE, as in plain decoding: a request for no token is scored
    and not sampled. The host counts none as such beside a speculative algorithm."""
    return req.sampling_params.max_new_tokens == 0
