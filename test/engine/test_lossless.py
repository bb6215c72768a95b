"""Every shape of GLANCE gives plain decoding's tokens, reuses its cache, and leaves no slot."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders.heads import config_of, constant_head, random_head
from builders.shipped import NEVER_WANTED
from harness import (
    HEAD,
    READER,
    Answer,
    Plain,
    Server,
    assert_identical,
    assert_no_slot_lost,
    booting,
    glance_flags,
    wait_until_up,
)

NUM_TOKENS = 64
LENGTH = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
# Asked of every shape but the default one, eight at a time and one by one; `--whole` asks all.
FEW, FEW_ALONE = 24, 8


@dataclass(frozen=True)
class Case:
    flags: dict[str, int] = field(default_factory=dict)
    head: str = "shipped"
    num_prompts: int = 42
    slow: bool = False


CASES = {
    "default": Case(),
    "budget8-page64": Case({"budget": 8, "page": 64}),
    "budget16-page16": Case({"budget": 16, "page": 16}),
    "budget64-chunk32": Case({"budget": 64, "chunk": 32}),
    "chain": Case({"topk": 1}),
    "random-head-budget31": Case({"budget": 31}, head="random"),
    "wrong-head-budget15": Case({"budget": 15}, head="wrong"),
    "block8-budget17": Case({"block": 8, "budget": 17, "topk": 4}, num_prompts=18),
    "budget2": Case({"budget": 2}, num_prompts=6, slow=True),
    "budget33": Case({"budget": 33}, num_prompts=12, slow=True),
    "budget63": Case({"budget": 63}, num_prompts=12, slow=True),
    "budget65-page16-chunk48": Case({"budget": 65, "page": 16, "chunk": 48}, slow=True),
}


@dataclass
class Run:
    """A started case with its answers: ``fresh`` by 8 at a time, ``cached`` one by one after."""

    case: Case
    server: Server
    requests: list[dict]
    fresh: list[Answer]
    cached: list[Answer]


def head_of(case: Case, folder: Path) -> Path:
    if case.head == "random":
        return random_head(config_of(HEAD), folder / "random-head")
    if case.head == "wrong":
        return constant_head(config_of(HEAD), READER, folder / "wrong-head", NEVER_WANTED)
    return HEAD


def run_case(case: Case, server: Server, prompts: list[dict], whole: bool) -> Run:
    whole = whole or case == CASES["default"]
    requests = prompts[: case.num_prompts if whole else min(case.num_prompts, FEW)]
    alone = requests if whole else requests[:FEW_ALONE]
    server.flush_cache()
    fresh = server.generate_all(requests, parallel=8, **LENGTH)
    cached = server.generate_all(alone, parallel=1, **LENGTH)
    return Run(case, server, requests, fresh, cached)


PARAMS = [
    pytest.param(name, id=name, marks=[pytest.mark.slow] if case.slow else [])
    for name, case in CASES.items()
]


class Fleet:
    """The servers of the cases ``names``, in their order: the next one starts while one answers."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self.waiting, self.folder = names, folder
        self.stacks: dict[str, contextlib.ExitStack] = {}
        self.servers: dict[str, Server] = {}

    def boot(self, name: str) -> None:
        case, folder = CASES[name], self.folder / name
        folder.mkdir()
        flags = glance_flags(head_of(case, folder), **case.flags)
        stack = self.stacks[name] = contextlib.ExitStack()
        self.servers[name] = stack.enter_context(booting(READER, folder / "server.log", *flags))

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[Server]:
        if name not in self.servers:
            self.boot(name)
        wait_until_up(self.servers[name])
        self.waiting.remove(name)
        if self.waiting:
            self.boot(self.waiting[0])
        with self.stacks[name]:
            yield self.servers[name]

    def close(self) -> None:
        for stack in self.stacks.values():
            stack.close()


SHARED = {"default": "glance", "chain": "chain"}  # fixtures of these cases


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    items = (item for item in request.session.items if item.module is request.module)
    chosen = dict.fromkeys(item.callspec.params["run"] for item in items)
    names = [name for name in chosen if name not in SHARED]
    fleet = Fleet(names, tmp_path_factory.mktemp("case"))
    yield fleet
    fleet.close()


@pytest.fixture(scope="module", params=PARAMS)
def run(request: pytest.FixtureRequest, prompts: list[dict], fleet: Fleet) -> Iterator[Run]:
    case, whole = CASES[request.param], request.config.getoption("--whole")
    if request.param in SHARED:
        shared: Server = request.getfixturevalue(SHARED[request.param])
        yield run_case(case, shared, prompts, whole)
        return
    with fleet.serving(request.param) as server:
        yield run_case(case, server, prompts, whole)


def test_eight_at_a_time(run: Run, plain: Plain) -> None:
    assert_identical(run.fresh, plain.answers(run.requests, **LENGTH))


def test_one_by_one_from_the_cache(run: Run, plain: Plain) -> None:
    page = run.case.flags.get("page", 1)
    for answer in run.cached:
        if answer.meta["prompt_tokens"] > page:
            assert answer.meta["cached_tokens"] >= page
    assert_identical(run.cached, plain.answers(run.requests[: len(run.cached)], **LENGTH))


def test_the_cache_holds_the_heads_keys_too(run: Run) -> None:
    """A head that had lost its context would draft worse from a cached prompt."""
    cached, fresh = (
        sum(answer.rounds for answer in answers)
        for answers in (run.cached, run.fresh[: len(run.cached)])
    )
    assert cached <= 1.02 * fresh


def test_one_by_one_without_cache(run: Run, plain: Plain) -> None:
    if run.case != CASES["default"]:
        pytest.skip("the default shape stands for all")
    for request, expected in zip(run.requests, plain.answers(run.requests, **LENGTH), strict=True):
        run.server.flush_cache()
        answer = run.server.generate(request, **LENGTH)
        assert answer.meta["cached_tokens"] == 0
        assert_identical([answer], [expected])


def test_a_chunk_ends_inside_a_picture(run: Run) -> None:
    """Guards the chunked cases: a picture of 60 tokens starts a few tokens into the prompt."""
    chunk = run.case.flags.get("chunk")
    if chunk is None:
        pytest.skip("not a chunked case")
    sizes = re.findall(r"Prefill batch.*?#new-token: (\d+)", run.server.log.read_text())
    assert sizes.count(str(chunk)) >= len(run.requests) // 2


def test_an_always_wrong_head_costs_rounds_only(run: Run) -> None:
    if run.case.head != "wrong":
        pytest.skip("not the wrong head")
    for answer in run.fresh + run.cached:
        assert answer.rounds == NUM_TOKENS - 1
        assert answer.meta["spec_num_correct_drafts"] == 0


def test_no_slot_is_lost(run: Run) -> None:
    assert_no_slot_lost(run.server)
