"""Servers shared by the engine tests. One starts in 25 s or more, hence the wide scopes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.prompts import exactness_prompts
from builders.qwen25vl import random_qwen25vl
from builders.weights import changed, named_as_a_head, weaker
from harness import (
    PICTURES,
    PLAIN,
    READER,
    SMALL_POOL,
    Folders,
    Plain,
    Rounds,
    Server,
    Started,
    booting,
    glance_flags,
    head_hash,
    picture_prompts,
    post,
    start,
    wait_until_up,
)
from probing import Probe, start_probed

TASKS = ("document", "chart", "infographic", "scene_text", "caption")


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def plain(logs: Path) -> Iterator[Plain]:
    """The shipped reader without speculation, float32."""
    flags = (*PLAIN, "--enable-custom-logit-processor")
    with booting(READER, logs / "plain.log", *flags) as server:
        yield Plain(server)


@pytest.fixture(scope="session")
def round_log(logs: Path) -> Path:
    return logs / "rounds.jsonl"


@pytest.fixture(scope="session")
def glance(logs: Path, round_log: Path) -> Iterator[Server]:
    """GLANCE as it starts when no speculative flag is given, float32."""
    env = {"SGLANG_GLANCE_ROUND_LOG": str(round_log)}
    flags = (*glance_flags(), "--enable-custom-logit-processor")
    with start(READER, logs / "glance.log", *flags, env=env) as server:
        yield server


@pytest.fixture(scope="session")
def chain(logs: Path) -> Iterator[Server]:
    """One candidate an offset: the tree is a chain."""
    flags = (*glance_flags(topk=1), "--enable-custom-logit-processor")
    with start(READER, logs / "chain.log", *flags) as server:
        yield server


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(1, id="page1"),
        pytest.param(16, id="page16", marks=pytest.mark.slow),
    ],
)
def small_pool(request: pytest.FixtureRequest, logs: Path) -> Iterator[Server]:
    """Room for about half of eight requests' answers, all admitted as if 8 tokens would do."""
    flags = glance_flags(budget=33, tokens=SMALL_POOL, page=request.param)
    log = logs / f"small-pool-{request.param}.log"
    env = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
    with start(READER, log, *flags, env=env) as server:
        yield server


@pytest.fixture(params=["tree", pytest.param("chain", marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue({"tree": "glance", "chain": "chain"}[request.param])


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    with start_probed(tmp_path_factory.mktemp("probe")) as probe:
        yield probe


@pytest.fixture(scope="session")
def parsing(logs: Path) -> Iterator[tuple[Server, Server]]:
    """GLANCE and plain decoding with parsers, pages of 64 tokens and detection of NaN; GLANCE in a
    small pool."""
    env = {"SGLANG_ENABLE_NAN_LOGITS_CHECK": "1", "SGLANG_ENABLE_ASYNC_ASSERT": "1"}
    flags = ["--page-size", "64", "--enable-response-store", "--served-model-name", str(READER)]
    flags += ["--reasoning-parser", "qwen3", "--enable-strict-thinking"]
    flags += ["--tool-call-parser", "qwen25", "--constrained-json-disable-any-whitespace"]
    few = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8", **env}
    with (
        booting(READER, logs / "parsing-plain.log", *PLAIN, *flags, env=env) as plain,
        start(
            READER,
            logs / "parsing.log",
            *glance_flags(tokens=SMALL_POOL),
            *flags,
            env=few,
        ) as ours,
    ):
        wait_until_up(plain)
        yield ours, plain


@pytest.fixture
def rounds(glance: Server, round_log: Path) -> Rounds:
    """Rounds of the ``glance`` server from here on."""
    return Rounds(round_log, round_log.stat().st_size)


@pytest.fixture(scope="session")
def prompts() -> list[dict]:
    return exactness_prompts(PICTURES)


@pytest.fixture(scope="session")
def questions() -> list[dict]:
    """The shipped pictures with their questions, by task: documents first, captions last."""
    return sorted(picture_prompts(PICTURES), key=lambda asked: TASKS.index(asked["task"]))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen2.5-VL that takes the reader's prompts."""
    return random_qwen25vl(READER, tmp_path_factory.mktemp("qwen25vl") / "model")


@pytest.fixture(scope="session")
def plain_qwen(logs: Path, qwen: Path) -> Iterator[Plain]:
    """That model without speculation, float32."""
    with booting(qwen, logs / "plain-qwen.log", "--dtype", "float32") as server:
        yield Plain(server)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("weights")
    return Folders(
        changed(READER, root / "other", weaker),
        changed(READER, root / "renamed", named_as_a_head),
    )


@pytest.fixture(scope="session")
def asked(questions: list[dict]) -> list[dict]:
    return [questions[0], questions[6], questions[14]]


@pytest.fixture(scope="session")
def started(logs: Path, folders: Folders, asked: list[dict]) -> Iterator[Started]:
    """A server that was started with other weights and has the shipped reader's since. A small
    pool, four requests at once, priorities."""
    flags = (
        *glance_flags(tokens=SMALL_POOL),
        *("--max-running-requests", "4"),
        *("--enable-priority-scheduling", "--schedule-policy", "lof"),
    )
    env = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
    with start(folders.other, logs / "control.log", *flags, env=env) as server:
        before = [server.generate(request) for request in asked]
        head = head_hash(server)
        post(server, "/update_weights_from_disk", model_path=str(READER))
        yield Started(server, before, head)


@pytest.fixture
def busy(started: Started) -> Server:
    """That server, with the shipped reader's weights."""
    return started.server
