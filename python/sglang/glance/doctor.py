"""``python -m sglang.glance doctor``: what is here, and whether GLANCE can start with it."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from importlib import metadata
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError, safe_open
from sglang.glance.assets import HEAD, READER
from sglang.srt.speculative.glance.config import parse_head
from sglang.srt.speculative.glance.engine import adjustments, host, seams

PACKAGES = (
    "sglang",
    "sglang-glance",
    "sglang-kernel-cpu",
    "sglang-kernel",
    "flashinfer-python",
    "torch",
    "triton",
    "transformers",
)


class Row(msgspec.Struct, frozen=True):
    """One line of a section. ``ok`` is None where there is nothing to judge."""

    name: str
    detail: str
    ok: bool | None = None


class Report(msgspec.Struct, frozen=True):
    """``problems``: why GLANCE could not start here; empty when it can."""

    installed: list[Row]
    device: list[Row]
    backends: list[Row]
    surface: list[Row]
    adjustments: list[Row]
    models: list[Row]
    problems: list[str]


def installed() -> list[Row]:
    return [Row("python", f"{sys.version.split()[0]} {sys.executable}")] + [
        Row(name, _version(name)) for name in PACKAGES
    ]


def _version(name: str) -> str:
    try:
        dist = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return "-"
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    return f"{dist.version}{' (editable)' if editable else ''}"


def surface() -> list[Row]:
    rows = []
    for seam in seams.rows():
        detail = "ok"
        if not seam.ok:
            expected = "present" if seam.expected is None else f"({', '.join(seam.expected)})"
            detail = f"{seam.found}, expected {expected}"
        rows.append(Row(seam.symbol, detail, seam.ok))
    return rows


def models() -> list[Row]:
    """The shipped reader and its head: complete files, and a head that fits."""
    rows = [_weights("reader", READER), _weights("head", HEAD)]
    try:
        head = json.loads((HEAD / "config.json").read_text())
        text = json.loads((READER / "config.json").read_text())["text_config"]
        config = parse_head(head, text)
    except (OSError, KeyError, ValueError) as error:
        return [*rows, Row("head fits reader", f"{type(error).__name__}: {error}", False)]
    detail = f"block {config.block}, taps {list(config.taps)}, mask id {config.mask_token_id}"
    return [*rows, Row("head fits reader", detail, True)]


def _weights(name: str, folder: Path) -> Row:
    try:
        with safe_open(folder / "model.safetensors", "pt") as file:
            sizes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        return Row(name, f"{folder}: {error}", False)
    count = sum(_product(size) for size in sizes)
    return Row(name, f"{count / 1e6:.2f} M parameters, {folder}", True)


def _product(size: list[int]) -> int:
    out = 1
    for length in size:
        out *= length
    return out


def examine() -> Report:
    """Look at everything. Imports much of SGLang."""
    warnings.simplefilter("ignore")  # the host's modules say which devices they do not support
    kind = host.device()
    backends = [Row(b.name, b.refusal or "usable", b.refusal is None) for b in host.backends(kind)]
    compared, shipped = surface(), models()
    registered = host.registration()
    problems = [f"surface: {row.name} {row.detail}" for row in compared if not row.ok]
    if registered.problem is not None:
        problems.append(f"registration: {registered.problem}")
    if not any(row.ok for row in backends):
        problems.append(f"attention: {backends[0].name}: {backends[0].detail}")
    problems += [f"{row.name}: {row.detail}" for row in shipped if not row.ok]
    return Report(
        installed=installed(),
        device=[
            Row("device", f"{kind}: {host.describe_device(kind)}"),
            Row("sgl_kernel", host.cpu_ops()),
            Row("GLANCE", registered.algorithm, registered.problem is None),
        ],
        backends=backends,
        surface=compared,
        adjustments=[
            Row(row.target, f"{row.reason}; until {row.until}") for row in adjustments.ADJUSTMENTS
        ],
        models=shipped,
        problems=problems,
    )


def show(report: Report, console: Console) -> None:
    for title in ("installed", "device", "backends", "surface", "adjustments", "models"):
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        table.add_column(width=2)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for row in getattr(report, title):
            mark = {None: "", True: "[green]ok[/]", False: "[red]no[/]"}[row.ok]
            table.add_row(mark, Text(row.name.removeprefix("sglang.srt.")), Text(row.detail))
        console.print(table, "")
    for problem in report.problems:
        console.print(Text(f"problem: {problem}", style="red"), soft_wrap=True)
    console.print("GLANCE cannot start here" if report.problems else "GLANCE can start here")


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when GLANCE could not start."""
    parser = argparse.ArgumentParser("sglang.glance doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(argv)
    report = examine()
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        show(report, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
