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


def said(command: list[str], budget_s: float) -> tuple[int, str]:
    """Exit code, and standard output; what went to standard error is in the exception."""
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=budget_s,
        check=False,
    )
    if ran.returncode not in (0, 1):
        raise Wrong(f"ended with code {ran.returncode}", {"said": ran.stderr[-SHOWN:]})
    return ran.returncode, ran.stdout


def flashinfer_attention(budget_s: float) -> dict[str, Any]:
    """Verify arguments and mask as SGLang's FlashInfer backend gets them, against slow torch."""
    code, out = said(["test/gpu/attention.py"], budget_s)
    lines = out.splitlines()
    if not lines:
        raise Wrong("it ended before its first case", {})
    errors = json.loads(lines[-1])
    if code:
        raise Wrong(f"largest differences from the reference: {errors}", errors)
    return errors


def twins(budget_s: float) -> dict[str, Any]:
    """Every kernel against the same function in plain torch, on this device."""
    tests = ["test/unit/kernels_glance", "test/unit/core"]
    code, out = said(["-m", "pytest", "-q", "-m", "not slow", *tests], budget_s)
    numbers = {
        word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", out)
    }
    if code or not numbers.get("passed"):
        raise Wrong("tests failed", {**numbers, "said": out[-SHOWN:]})
    return numbers
