"""What a server's process finds here. Run in a process of its own by ``glance doctor``: SGLang
reads flags and environment while it is imported, and a start may end the process it is tried in."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib import metadata

import msgspec
from sglang.glance.check.doctor.findings import Findings, Row
from sglang.srt.speculative.glance.engine import trial
from sglang.srt.speculative.glance.engine.host import adjustments, seams
from sglang.srt.speculative.glance.engine.start import survey

PACKAGES = (
    "sglang",
    "sglang-glance",
    *survey.KERNELS,
    "flashinfer-python",
    "torch",
    "triton",
    "transformers",
)


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


def _kernel() -> str:
    """Which ops are loaded, and the distribution they are of."""
    owners = [f"{name} {version}" for name, version in survey.kernel_owners().items()]
    return "; ".join([survey.cpu_ops(), *owners])


def examine(flags: list[str]) -> Findings:
    """The trial first, so that nothing but a server's own imports has run before it."""
    tried = trial.try_start(flags)
    kind, registered = survey.device(), trial.registration()
    return Findings(
        installed=installed(),
        device=[
            Row("device", f"{kind}: {survey.describe_device(kind)}"),
            Row("sgl_kernel", _kernel()),
            Row("GLANCE", registered.problem or registered.algorithm, registered.problem is None),
        ],
        backends=[
            Row(b.name, b.refusal or "usable", b.refusal is None) for b in survey.backends(kind)
        ],
        surface=surface(),
        adjustments=[
            Row(row.target, f"{row.reason}; until {row.until}") for row in adjustments.ADJUSTMENTS
        ],
        settled=tried.settled,
        refusal=tried.refusal,
    )


def main() -> None:
    """One JSON line on standard output; whatever SGLang prints goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # the host's modules say which devices they do not support
    found = msgspec.json.encode(examine(sys.argv[1:]))
    os.write(out, found + b"\n")
