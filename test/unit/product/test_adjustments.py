"""A server in which this plugin is merely installed runs SGLang's own functions."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang.srt.speculative.glance.engine.host import adjustments
from sglang.srt.speculative.glance.engine.host.adjustments import (
    ADJUSTMENTS,
    OUR_OPS,
    Adjustment,
    in_a_glance_server,
    on_our_cpu_ops,
)

GLANCE_ROWS = [row for row in ADJUSTMENTS if row not in OUR_OPS]
OTHERS = [None, "EAGLE3", "NGRAM", "DFLASH", "STANDALONE"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets the algorithm of this process' server."""

    def published(algorithm: str | None) -> None:
        context = SimpleNamespace(is_config_namespace_published=lambda name: name == "spec")
        monkeypatch.setattr(adjustments, "get_context", lambda: context)
        spec = SimpleNamespace(speculative_algorithm=algorithm)
        monkeypatch.setattr(adjustments, "get_spec", lambda: spec)

    return published


def answer(row: Adjustment) -> object:
    """What the row's hook gives where the host's own function gives its arguments back."""

    def original(*args: object, **kwargs: object) -> tuple:
        return "host", args, kwargs

    async def awaited(*args: object, **kwargs: object) -> tuple:
        return original(*args, **kwargs)

    waits = inspect.iscoroutinefunction(row.hook)
    given = row.gated()(awaited if waits else original, 1, "two", three=3)
    return asyncio.run(given) if inspect.iscoroutine(given) else given


UNTOUCHED = ("host", (1, "two"), {"three": 3})


@pytest.mark.parametrize("row", GLANCE_ROWS, ids=lambda row: row.hook.__name__)
def test_a_row_acts_in_a_glance_server_alone(row: Adjustment, serve: Callable) -> None:
    for algorithm in OTHERS:
        serve(algorithm)
        assert answer(row) == UNTOUCHED
    for algorithm in ("GLANCE", "glance"):
        serve(algorithm)
        acted = row._replace(hook=lambda original, *args, **kwargs: "ours")
        assert answer(acted) == "ours"


def test_a_process_that_serves_nothing_is_no_glance_server() -> None:
    assert in_a_glance_server() is False


@pytest.mark.parametrize("row", OUR_OPS, ids=lambda row: row.hook.__name__)
def test_a_row_of_our_ops_acts_where_sgl_kernel_is_ours(
    row: Adjustment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row.acts is on_our_cpu_ops
    monkeypatch.setitem(sys.modules, "sgl_kernel", SimpleNamespace())
    assert answer(row) == UNTOUCHED
    monkeypatch.delitem(sys.modules, "sgl_kernel")
    assert answer(row) == UNTOUCHED


def test_nothing_but_the_rows_is_replaced() -> None:
    """Names under which a module of the host imported a hooked function are replaced with it."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("patched.py"))],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    replaced = set(json.loads(ran.stdout.splitlines()[-1])) - {"sglang.srt.plugins._plugins_loaded"}
    rows = {row.target for row in ADJUSTMENTS}
    assert rows <= replaced
    functions = {target.rpartition(".")[2] for target in rows}
    assert {name.rpartition(".")[2] for name in replaced} <= functions
