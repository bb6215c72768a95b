"""Start-up: what a server without flags settles on, and heads that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.heads import broken_head
from harness import HEAD, READER, Server, glance_flags, start


def test_defaults(glance: Server) -> None:
    info = glance.get("/server_info").json()
    assert info["speculative_algorithm"] == "GLANCE"
    assert info["speculative_num_draft_tokens"] == 32
    assert info["speculative_eagle_topk"] == 8
    assert info["speculative_dflash_block_size"] == 16


def test_overlap_is_off_on_a_cpu(glance: Server) -> None:
    """The CPU path has no second stream: overlap must not be left half on."""
    assert glance.get("/server_info").json()["disable_overlap_schedule"] is True


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        pytest.param(
            "target_layer_ids", {"target_layer_ids": [0, 1, 2, 3, 5]}, id="tap-of-the-last-layer"
        ),
        pytest.param(
            "mask_token_id", {"mask_token_id": None}, id="no-mask-token", marks=pytest.mark.slow
        ),
    ],
)
def test_broken_head_ends_the_start_naming_the_field(
    tmp_path: Path, field: str, changes: dict
) -> None:
    head = broken_head(HEAD, tmp_path / "head", **changes)
    with (
        pytest.raises(RuntimeError, match=rf"head config field \S*{field}"),
        start(READER, tmp_path / "server.log", *glance_flags(head)),
    ):
        pass
