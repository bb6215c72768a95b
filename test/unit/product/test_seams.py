"""The table of the host's surface: true of the installed wheel, and complete."""

import ast
import importlib
from pathlib import Path

import pytest
from sglang.srt.speculative.glance.engine.host import seams

ENGINE = Path(seams.__file__).parents[1]
OURS = "sglang.srt.speculative.glance"


def test_every_row_is_true_of_the_installed_host():
    assert [row for row in seams.rows() if not row.ok] == []
    assert seams.host_version() in seams.TESTED


def imported_symbols() -> set[str]:
    """``module:name`` for every name of SGLang that a file of engine/ imports."""
    trees = [ast.parse(path.read_text()) for path in ENGINE.rglob("*.py")]
    return {
        f"{node.module}:{alias.name}"
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module.startswith("sglang.") and not node.module.startswith(OURS)
    }


def rows_of(symbol: str) -> bool:
    return any(row == symbol or row.startswith(f"{symbol}.") for row in seams.SURFACE)


# Read by the doctor alone, which reports what is missing.
DOCTOR_ONLY = {
    "sglang.srt.arg_groups.choices:ATTENTION_BACKEND_CHOICES",
    "sglang.srt.server_args:prepare_server_args",
    "sglang.srt.plugins:load_plugins",
    "sglang.srt.utils.common:cpu_has_amx_support",
}


def test_every_imported_symbol_has_a_row():
    symbols = imported_symbols() - DOCTOR_ONLY
    assert len(symbols) > 25
    assert {symbol for symbol in symbols if not rows_of(symbol)} == set()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("worker", "GlanceWorker"),
        ("start.started", "StartedWorker"),
        ("round.inputs", "GlanceDraftInput"),
        ("round.graphs", "GlanceVerifyGraphRunner"),
    ],
)
def test_every_overridden_method_has_a_row(module, name):
    ours = getattr(importlib.import_module(f"{OURS}.engine.{module}"), name)
    parent = next(base for base in ours.__mro__ if not base.__module__.startswith(OURS))
    overridden = {
        method
        for method, value in vars(ours).items()
        if callable(value) and hasattr(parent, method) and not hasattr(object, method)
    }
    assert overridden
    hosts = [f"{base.__module__}:{base.__qualname__}" for base in parent.__mro__]
    rows = {f"{base}.{method}": method for base in hosts for method in overridden}
    assert overridden - {rows[row] for row in rows.keys() & seams.SURFACE.keys()} == set()


def test_every_hooked_function_has_a_row():
    from sglang.srt.speculative.glance.engine.host.adjustments import ADJUSTMENTS

    symbols = {symbol.replace(":", ".") for symbol in seams.SURFACE}
    for row in ADJUSTMENTS:
        assert row.target in symbols
        assert row.reason and row.until


@pytest.mark.parametrize(
    ("symbol", "expected", "found"),
    [
        ("json:dumps", ("obj",), "(obj, skipkeys"),
        ("json:nothing", None, "AttributeError"),
        ("json.nothing:at_all", None, "ModuleNotFoundError"),
        ("math:pi", ("x",), "TypeError"),
    ],
)
def test_what_does_not_match_is_reported(symbol, expected, found):
    row = seams.check(symbol, expected)
    assert not row.ok and found in row.found


def test_order_of_parameters_counts():
    assert seams.check("json:loads", None).ok
    names = tuple(seams.check("json:loads", ()).found.strip("()").split(", "))
    assert seams.check("json:loads", names).ok
    assert not seams.check("json:loads", names[::-1]).ok


def test_a_missing_package_is_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "host_part.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(seams, "SURFACE", {"host_part:anything": None})
    assert seams.mismatch().endswith("; install not_installed_here")
