"""From a target, a head and more flags to a :class:`Report`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from sglang.glance.check.doctor.findings import Findings, Report, Row
from sglang.glance.check.doctor.pair import free_memory, memory, read_pair, window
from sglang.glance.cli.failures import Failed
from sglang.glance.serving.flags import serving, shell_line, this_device
from sglang.glance.serving.server import reason
from sglang.srt.speculative.glance.engine.start import survey

EXAMINER = (
    "import sglang_glance; sglang_glance.extend_host_path(); "
    "from sglang.glance.check.doctor.examine import main; main()"
)


def diagnose(target: Path, head: Path, more: list[str]) -> Report:
    """``more``: flags of the server beside those that this machine needs."""
    if (mix := survey.kernel_mix()) is not None:  # SGLang may not even be imported beside it
        raise Failed(mix)
    device = this_device()
    flags = [*serving(target, head, device), *more]
    findings = examined(flags)
    rows = [*_host(findings), *_models(target, head, findings, device)]
    rows.append(Row("server", findings.refusal or "would start", findings.refusal is None))
    problems = [f"{row.name}: {row.detail}" for row in rows if row.ok is False]
    return Report(rows, findings, shell_line(flags, device), problems)


def examined(flags: list[str]) -> Findings:
    """What another process, in this shell's environment, finds with these flags of a server."""
    with tempfile.NamedTemporaryFile("w+", prefix="glance-doctor-") as log:
        command = [sys.executable, "-c", EXAMINER, *flags]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=False)
        if ran.returncode == 0:
            return msgspec.json.decode(ran.stdout, type=Findings)
        raise Failed(
            f"SGLang ends with code {ran.returncode} while it is imported: {reason(Path(log.name))}"
        )


def _host(findings: Findings) -> Iterator[Row]:
    versions = {row.name: row.detail for row in findings.installed}
    shown = ("sglang-glance", "sglang", "torch", "python")
    yield Row("versions", ", ".join(f"{name} {versions[name].split()[0]}" for name in shown))
    yield from findings.device
    wrong = [row for row in findings.surface if not row.ok]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield Row("surface", f"{wrong[0].name} {wrong[0].detail}{more}", False)
    else:
        yield Row("surface", f"{len(findings.surface)} functions of SGLang as expected", True)
    if findings.settled:
        yield Row("attention", str(findings.settled["attention_backend"]))


def _models(target: Path, head: Path, findings: Findings, device: str) -> Iterator[Row]:
    pair = read_pair(target, head)
    yield from pair.rows
    if findings.refusal is None:
        yield window(findings.settled)
        yield memory(pair, findings.settled, free_memory(device))
