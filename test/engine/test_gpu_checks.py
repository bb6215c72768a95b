"""What `make test-gpu` asks and how it judges, on servers of this machine: rows hold in float32,
and a server that is no GLANCE server fails them."""

from __future__ import annotations

import pytest
from gpu.checks import answers, judge
from harness import Plain, Server


@pytest.mark.parametrize("check", ["penalties", "grammar", "logprobs"])
def test_a_check_holds(glance: Server, plain: Plain, check: str) -> None:
    glance.flush_cache()
    expected = answers(plain.server, check)
    verdict = judge(check, True, False, expected, answers(glance, check))
    assert verdict.good, verdict
    assert not judge(check, True, False, expected, expected).good
