"""New weights on a running server: the target's change, the head stays itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from builders.floors import ACCEPT_LEN_WITHOUT_CONTEXT
from builders.weights import WEIGHTS, sent
from harness import (
    HEAD,
    READER,
    Folders,
    Plain,
    Server,
    Started,
    assert_identical,
    head_hash,
    post,
    tokens_per_round,
)
from safetensors.torch import load_file


def assert_as_started_with(
    busy: Server, glance: Server, plain: Plain, asked: Sequence[dict]
) -> None:
    """Plain decoding's answers, in as many rounds as on a server that was never updated."""
    ours = [busy.generate(request) for request in asked]
    assert_identical(ours, plain.answers(asked))
    assert [a.rounds for a in ours] == [glance.generate(request).rounds for request in asked]


def test_update_from_a_folder(
    started: Started, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    assert [a.ids for a in started.before] != [a.ids for a in plain.answers(asked)]
    assert_as_started_with(started.server, glance, plain, asked)
    assert head_hash(started.server) == started.head


def test_update_from_the_same_folder(
    busy: Server, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    post(busy, "/update_weights_from_disk", model_path=str(READER))
    assert_as_started_with(busy, glance, plain, asked)


def test_update_from_a_folder_whose_names_are_the_heads_too(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    post(started.server, "/update_weights_from_disk", model_path=str(folders.renamed))
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


@contextlib.contextmanager
def weights_of(folder: Path, *servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            post(server, "/update_weights_from_disk", model_path=str(folder))
        yield
    finally:
        for server in servers:
            post(server, "/update_weights_from_disk", model_path=str(READER))


def test_update_to_other_weights_and_back(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    busy = started.server
    with weights_of(folders.other, busy, plain.server):
        ours = [busy.generate(request) for request in asked]
        assert_identical(ours, started.before)
        assert_identical(ours, [plain.server.generate(request) for request in asked])
    assert_as_started_with(busy, glance, plain, asked)


def test_update_from_a_folder_that_is_not_there(
    busy: Server, plain: Plain, asked: list[dict]
) -> None:
    post(busy, "/update_weights_from_disk", status=400, model_path="/nowhere")
    assert_identical([busy.generate(asked[0])], [plain.answer(asked[0])])


def load(server: Server, tensors: dict, selector: str) -> None:
    post(server, "/begin_weight_update", selector=selector)
    body = {"serialized_named_tensors": sent(tensors), "selector": selector}
    post(server, "/update_weights_from_tensor", **body)
    post(server, "/end_weight_update")


def test_tensors_for_all_are_the_targets(
    started: Started, folders: Folders, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    load(started.server, load_file(folders.renamed / WEIGHTS), "all")
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


def test_tensors_for_the_draft_are_the_heads(
    started: Started, glance: Server, plain: Plain, asked: list[dict]
) -> None:
    """What is copied of the head's weights follows them: a head whose context K and V are wrong
    drafts nothing, and the answers stay."""
    head = load_file(HEAD / WEIGHTS)
    keys_and_values = {k: v for k, v in head.items() if "k_proj" in k or "v_proj" in k}
    try:
        load(started.server, {k: v.flip(0, 1) for k, v in keys_and_values.items()}, "draft")
        assert head_hash(started.server) != started.head
        ours = [started.server.generate(request) for request in asked]
        assert_identical(ours, plain.answers(asked))
        assert tokens_per_round(ours) < ACCEPT_LEN_WITHOUT_CONTEXT
    finally:
        load(started.server, keys_and_values, "draft")
    assert head_hash(started.server) == started.head
    assert_as_started_with(started.server, glance, plain, asked)


@pytest.mark.parametrize("path", ["/release_memory_occupation", "/resume_memory_occupation"])
def test_memory_of_a_cpu_is_not_released(
    busy: Server, plain: Plain, asked: list[dict], path: str
) -> None:
    assert "CPU has no device memory" in post(busy, path, status=400)["error"]["message"]
    assert_identical([busy.generate(asked[0])], [plain.answer(asked[0])])
