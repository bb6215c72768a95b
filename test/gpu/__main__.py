"""``make test-gpu``: everything that needs an NVIDIA GPU, in one run of under 8 minutes.

Kernels against their twins, FlashInfer over trees against a plain softmax, then servers of the
shipped model, with GLANCE and without, side by side (``rows.py`` says which), and last the speed of
both. One JSON file has a verdict a row and is written after each; nothing ends the run early but
its time. Exit code 0 if no row failed, 1 if one did, 2 if the checks could not be made.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from sglang.glance.cli.files import check_file, write_json
from sglang.glance.cli.signals import unwind_on_signals
from sglang.glance.measure.provenance import Provenance, describe
from sglang.glance.serving.server import Answer, serve, starting, wait_until_up
from sglang.glance.shipped import HEAD, PICTURES, READER

from gpu import rows as plan
from gpu.checks import Verdict, answers, judge

ROOT = Path(__file__).resolve().parents[2]
GLANCE = ("--speculative-algorithm", "GLANCE", "--speculative-draft-model-path", str(HEAD))
OK, FAILED, LEFT_OUT = "ok", "failed", "left out"


class Row(msgspec.Struct, frozen=True):
    """``seconds``: of the check, a server's start not counted."""

    row: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = {}


class Report:
    """Rows as they come in, in a file that is whole after each."""

    def __init__(self, path: Path, made: Provenance, wanted: re.Pattern, until: float) -> None:
        self.path, self.made, self.wanted, self.until = path, made, wanted, until
        self.rows: list[Row] = []
        self.lock = threading.Lock()

    def add(self, row: Row) -> None:
        with self.lock:
            self.rows.append(row)
            counts = {v: sum(r.verdict == v for r in self.rows) for v in (OK, FAILED, LEFT_OUT)}
            write_json(self.path, {"provenance": self.made, "counts": counts, "rows": self.rows})
        detail = row.reason or ", ".join(f"{k} {v}" for k, v in row.figures.items())
        print(f"{row.verdict:8} {row.row:50} {row.seconds:6.1f} s  {detail}", flush=True)

    def left(self) -> float:
        return self.until - time.monotonic()

    def check(self, name: str, work: Callable[[], Verdict]) -> None:
        """One row, whatever becomes of it."""
        if self.wanted.search(name) is None:
            return
        if self.left() <= 0:
            self.add(Row(name, LEFT_OUT, "no time left"))
            return
        began = time.monotonic()
        try:
            good, reason, figures = work()
            verdict = OK if good else FAILED
        except Exception as error:  # noqa: BLE001  the next row is tried all the same
            traceback.print_exc()
            verdict, reason, figures = FAILED, f"{type(error).__name__}: {error}"[:2000], {}
        self.add(Row(name, verdict, reason, round(time.monotonic() - began, 1), figures))


def backend_is_absent(arm: plan.Arm) -> str | None:
    """Why this card or installation has not the arm's backend, or None."""
    from sglang.srt.speculative.glance.engine.start.survey import backends

    for backend in backends("cuda"):
        if backend.name in arm.flags and backend.refusal is not None:
            return backend.refusal
    return None


def run_arm(
    arm: plan.Arm, device: str, report: Report, logs: Path, plain: dict[str, Future]
) -> dict[str, list[Answer]]:
    """Start the arm's server once and make all its rows. Returns its answers by check."""
    wanted = [check for check in arm.checks if report.wanted.search(f"{arm.name}/{check}")]
    needed = arm.reference is None or wanted
    said = backend_is_absent(arm) if device == "cuda" else None
    if said is None and report.left() <= 0:
        said = "no time left"
    if said is not None or not needed:
        for check in wanted if said is not None else ():
            report.add(Row(f"{arm.name}/{check}", LEFT_OUT, said))
        return {}
    found: dict[str, list[Answer]] = {}
    flags = arm.flags if arm.reference is None else (*GLANCE, *arm.flags)
    log = logs / f"{arm.name}.log"

    def one(check: str) -> Verdict:
        found[check] = answers(server, check)
        if arm.reference is None:
            return Verdict(True, "", {"answers": len(found[check])})
        reference = plain[arm.reference].result()
        if check not in reference:
            return Verdict(False, f"{arm.reference} has no answers to compare with", {})
        return judge(check, arm.exact, arm.chain, reference[check], found[check])

    try:
        with serve(READER, log, *flags, device=device) as server:
            for check in arm.checks if arm.reference is None else wanted:
                report.check(f"{arm.name}/{check}", lambda check=check: one(check))
    except Exception as error:  # noqa: BLE001  a server that does not start is a failed row
        report.add(Row(f"{arm.name}/start", FAILED, f"{type(error).__name__}: {error}"[:2000]))
    return found


def kernels() -> Verdict:
    """The unit tests of kernels and method, compiled for this card."""
    folders = [str(ROOT / "test/unit" / name) for name in ("kernels_glance", "core", "graphs")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *folders]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    last = (done.stdout or done.stderr).strip().splitlines()[-1:]
    good = done.returncode == 0
    return Verdict(good, "" if good else done.stdout[-2000:], {"pytest": " ".join(last)})


def attention(page_size: int) -> Verdict:
    from gpu.attention import TOLERANCE, largest_error

    error = largest_error(page_size)
    good = error <= TOLERANCE
    return Verdict(good, "" if good else f"error {error:.4f} above {TOLERANCE}", {"error": error})


def speed(device: str, logs: Path) -> Verdict:
    """Both servers up, asked in turn; nothing else runs. Median over the shipped pictures."""
    from builders.prompts import picture_prompts

    prompts = picture_prompts(PICTURES)
    cpu = device == "cpu"
    flags = ("--dtype", "float32") if cpu else (*plan.SHARED, "--dtype", "bfloat16")
    with ExitStack() as stack:
        both = []
        for name, more in (("plain", ()), ("glance", GLANCE)):
            log = logs / f"speed-{name}.log"
            start = starting(READER, log, *flags, *more, device=device)
            both.append(stack.enter_context(start))
        for server in both:
            wait_until_up(server)
            for prompt in prompts:  # every shape is compiled, every picture seen
                server.timed(prompt)
        took = [[server.timed(prompt) for server in both] for prompt in prompts for _ in range(2)]

    def ratio(seconds: Callable[[Answer], float]) -> float:
        return round(statistics.median(seconds(a) / seconds(b) for a, b in took), 3)

    figures = {
        "end_to_end": ratio(lambda answer: answer.total_s),
        "decode_only": ratio(lambda answer: answer.total_s - answer.first_s),
        "formula": "median of plain's seconds over GLANCE's, batch 1",
    }
    return Verdict(True, "", figures)


def run(arms: Sequence[plan.Arm], device: str, report: Report, logs: Path, lanes: int) -> None:
    if device == "cuda":
        report.check("kernels", kernels)
        for page_size in (1, 16):
            report.check(f"flashinfer-tree/page{page_size}", lambda page=page_size: attention(page))
    plain: dict[str, Future] = {}
    with ThreadPoolExecutor(lanes) as pool:
        # Plain arms come first, so that no lane waits for one that has not begun.
        for arm in sorted(arms, key=lambda arm: arm.reference is not None):
            plain[arm.name] = pool.submit(run_arm, arm, device, report, logs, plain)
    report.check("speed", lambda: speed(device, logs))


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="make test-gpu ARGS=...", description=__doc__)
    out.add_argument("--out", type=Path, default=Path("out/test-gpu.json"), help="the verdicts")
    out.add_argument("--minutes", type=float, default=8.0, help="rows begun later are left out")
    out.add_argument("--rows", type=re.compile, default="", help="only rows that this regex finds")
    out.add_argument("--lanes", type=int, help="servers at a time")
    out.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    out.add_argument("--list", action="store_true", help="print the rows, check nothing")
    return out


def main() -> int:
    options = parser().parse_args()
    options.rows = re.compile(options.rows)
    arms = plan.on_a_gpu() if options.device == "cuda" else plan.on_a_cpu()
    if options.list:
        print(*(row for arm in arms for row in arm.rows), sep="\n")
        return 0
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("test-gpu: no CUDA device: these checks need one", file=sys.stderr)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_file("--out", options.out)
    except ValueError as error:
        print(f"test-gpu: {error}", file=sys.stderr)
        return 2
    until = time.monotonic() + 60 * options.minutes
    report = Report(options.out, describe([READER, HEAD, PICTURES]), options.rows, until)
    logs = options.out.parent / "test-gpu-logs"
    logs.mkdir(exist_ok=True)
    lanes = options.lanes or (plan.LANES if options.device == "cuda" else 2)
    with unwind_on_signals():
        run(arms, options.device, report, logs, lanes)
    failed = [row.row for row in report.rows if row.verdict == FAILED]
    print(f"{len(report.rows)} rows, {len(failed)} failed; {options.out}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
