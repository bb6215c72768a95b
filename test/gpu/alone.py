"""Checks without a server, each in a process of its own: a kernel that faults ends that one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu.checks import Wrong

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 2000  # characters of what a failed one said


def ran(command: list[str], budget_s: float) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=budget_s,
        check=False,
    )


def flashinfer_attention(budget_s: float) -> dict[str, Any]:
    """Mask and arguments as SGLang's FlashInfer backend gets them, against slow torch."""
    done = ran(["test/gpu/attention.py"], budget_s)
    if not done.stdout.startswith("{"):
        raise Wrong(f"ended with code {done.returncode}", {"said": done.stderr[-SHOWN:]})
    errors = json.loads(done.stdout)
    if done.returncode:
        raise Wrong("too far from the reference, or so is causal attention not", errors)
    return errors


def twins(budget_s: float) -> dict[str, Any]:
    """Every kernel against the same function in plain torch, on this device."""
    tests = ["test/unit/kernels_glance", "test/unit/core"]
    done = ran(["-m", "pytest", "-q", "-m", "not slow", *tests], budget_s)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout)
    numbers = {word: int(number) for number, word in counts}
    if done.returncode or not numbers.get("passed"):
        raise Wrong("tests failed", {**numbers, "said": (done.stdout + done.stderr)[-SHOWN:]})
    return numbers
