"""Errors that a user reads as one line when a server does not start."""

from __future__ import annotations

import sys
from traceback import walk_tb
from types import TracebackType
from typing import Any, NoReturn


class Refusal(ValueError):
    """A flag or a checkpoint that GLANCE does not serve; the message is one line that names it."""


class Unavailable(RuntimeError):
    """A host that GLANCE cannot run in; the message is one line."""


def refuse(flag: str, got: Any, expected: str) -> NoReturn:
    if got is None:
        raise Refusal(f"GLANCE needs {flag}: give {expected}")
    raise Refusal(f"GLANCE does not support {flag}={got!r}: expected {expected}")


def print_alone() -> None:
    """Have the launcher print a refusal without its traceback. The exit code stays 1.

    Every other exception, and a refusal in a script that makes an ``sglang.Engine``, goes to the
    hook that was there before.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, (Refusal, Unavailable)) and _from_launcher(trace):
            line = str(error)
            print(line if line.startswith("GLANCE") else f"GLANCE: {line}", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def _from_launcher(trace: TracebackType | None) -> bool:
    """Whether ``python -m sglang.launch_server`` or ``sglang serve`` was on the stack."""
    specs = [frame.f_globals.get("__spec__") for frame, _ in walk_tb(trace)]
    return any(spec is not None and spec.name == "sglang.launch_server" for spec in specs)
