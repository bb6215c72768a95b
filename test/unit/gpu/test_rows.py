"""Which rows there are, and that SGLang takes the flags of every server: no card is needed."""

from __future__ import annotations

import argparse
from itertools import groupby, product

import pytest
from gpu import checks, rows
from gpu.rows import BACKENDS, PAGES, Row, Setup, gpu_rows, rows_for
from harness import READER
from sglang.glance.serving.flags import short_lived
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.glance.engine.start.survey import Backend

SETUPS = list(dict.fromkeys(row.setup for row in gpu_rows() if row.setup))


@pytest.fixture(params=["cuda", "cpu"])
def planned(request: pytest.FixtureRequest) -> list[Row]:
    return rows_for(request.param)


def test_names_are_unique(planned: list[Row]) -> None:
    names = [row.name for row in planned]
    assert len(set(names)) == len(names)


def test_a_server_is_started_once(planned: list[Row]) -> None:
    runs = [setup for setup, _ in groupby(row.setup for row in planned) if setup]
    assert len(set(runs)) == len(runs)


def test_nothing_starts_beside_what_is_timed(planned: list[Row]) -> None:
    timed = [row for row in planned if row.what.startswith("speed")]
    assert timed and all(row.quiet and row.setup.is_default for row in timed)
    assert {row.check.keywords["batch"] for row in timed} == {1, checks.MOST_AT_A_TIME}


def test_the_matrix_is_whole() -> None:
    """Backend, page, graphs or eager, tree or chain, each with the context's end."""
    tried = {}
    for row in gpu_rows():
        if row.setup and row.setup.backend and row.setup.dtype == "bfloat16":
            shape = (row.setup.backend, row.setup.page, row.setup.tree)
            tried.setdefault(shape, set()).add(row.what)
    for shape in product(BACKENDS, PAGES, (True, False)):
        assert tried[shape] >= {"graphs", "above the largest graph", "context limit", "slots"}
    eager = {row.setup.backend for row in gpu_rows() if row.what == "eager"}
    assert eager == set(BACKENDS)


def test_every_feature_is_tried_in_float32_with_overlap_scheduling_and_without() -> None:
    features = {*checks.FEATURE_GROUPS, "log-probabilities", "context limit"}
    for overlap in (True, False):
        whats = {
            row.what
            for row in gpu_rows()
            if row.setup and row.setup.dtype == "float32" and row.setup.overlap == overlap
        }
        assert features <= whats
    assert "seeded sampling" in {row.what for row in gpu_rows()}
    named = [name for group in checks.FEATURE_GROUPS.values() for name in group]
    assert set(named) <= set(checks.FEATURES)


def test_the_backends_of_this_card_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Backend("flashinfer", None), Backend("triton", None), Backend("fa3", "SM 10.0")]
    monkeypatch.setattr(rows, "backends", lambda device: found)
    out = {row.name: rows.left_out(row, "cuda") for row in gpu_rows()}
    assert {name for name, reason in out.items() if reason} == {n for n in out if "fa3" in n}
    monkeypatch.setattr(rows, "backends", lambda device: [Backend(n, "absent") for n in BACKENDS])
    assert rows.left_out(gpu_rows()[0], "cuda") == "absent"


def settled(setup: Setup, hopper: bool) -> ServerArgs:
    """What SGLang makes of the server's flags on a card."""
    load_plugins()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = short_lived("cuda", given=setup.flags)
    given = parser.parse_args(["--model-path", str(READER), "--device", "cuda", *flags])
    args = ServerArgs.from_cli_args(given)
    platform = {"is_hopper_with_cuda_12_3": hopper, "is_sm100": False, "has_flashinfer": True}
    with override_platform(**platform):
        args.resolve_once()
    return resolving_view(args)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_sglang_takes_the_flags_and_keeps_them(setup: Setup) -> None:
    args = settled(setup, hopper=True)
    assert (args.speculative_algorithm, args.dtype) == ("GLANCE", setup.dtype)
    assert args.attention_backend == (setup.backend or "flashinfer")
    assert args.speculative_draft_attention_backend == args.attention_backend
    assert args.page_size == setup.page
    assert args.disable_overlap_schedule == (not setup.overlap)
    assert (args.speculative_eagle_topk > 1) == setup.tree
    assert args.enable_deterministic_inference == setup.seeded
    graphs = args.cuda_graph_config.decode
    assert (graphs.backend != "disabled") == setup.graphs
    if setup.backend and setup.graphs:
        assert graphs.bs == list(range(1, checks.LARGEST_GRAPH + 1))
    assert args.max_running_requests > checks.LARGEST_GRAPH


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize(
    "setup", dict.fromkeys(setup.reference for setup in SETUPS), ids=lambda setup: setup.name
)
def test_plain_servers_decode_plainly(setup: Setup, hopper: bool) -> None:
    args = settled(setup, hopper)
    assert args.speculative_algorithm is None
    exact = setup.dtype == "float32"
    assert args.disable_overlap_schedule == exact
    assert (args.attention_backend == "triton") == exact
    assert (args.mm_attention_backend == "sdpa") == exact
