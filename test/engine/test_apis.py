"""Every API of the server, whole replies: a GLANCE server's equal a plain one's."""

from __future__ import annotations

import pytest
from builders.apis import RESCORED, table
from harness import Plain, Server, assert_no_slot_lost
from replies import Reply, assert_same, send, send_together

CALLS = table()


@pytest.mark.parametrize("name", CALLS)
def test_reply_is_plain_decodings(glance: Server, plain: Plain, name: str) -> None:
    call = CALLS[name]
    expected = send(plain.server, call)
    assert expected.status == call.status, expected
    assert_same(send(glance, call), expected)


def test_all_at_once(glance: Server, plain: Plain) -> None:
    """Prompts, answers and log-probabilities of other lengths and kinds share each batch."""
    calls = [call for call in CALLS.values() if call.status == 200]
    expected = send_together(plain.server, calls)
    assert_same(send_together(glance, calls), expected)
    assert_no_slot_lost(glance)


def prompts_of(reply: Reply) -> list[dict]:
    metas = [each["meta_info"] for each in reply.content]
    return [{k: meta[k] for k in meta if k.startswith(("input_", "prompt_"))} for meta in metas]


def test_prompts_alone_are_rescored(glance: Server, plain: Plain) -> None:
    ours, expected = (prompts_of(send(s, RESCORED)) for s in (glance, plain.server))
    assert [len(each["input_token_logprobs"]) for each in expected] == [30, 20, 1, 3]
    assert_same(ours, expected)
