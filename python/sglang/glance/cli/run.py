"""Runs one command: its exit code, whatever happens in it."""

from __future__ import annotations

import importlib
import sys
import traceback

from sglang.glance.cli.failures import FAILURES, line_of
from sglang.glance.cli.signals import unwind_on_signals

REFUSED, INTERRUPTED = 2, 130
# Commands with an extra of the distribution, which names what they need.
EXTRAS = {"bench", "demo", "law", "reader", "tasks", "train"}
# Where a command is not a package of the command's own name.
FOLDERS = {"doctor": "check", "demo": "check", "audit": "check", "bench": "measure"}


def run(name: str, argv: list[str]) -> int:
    """What ``main`` of the command's module returns; 2 where it could not do its work,
    130 after Ctrl-C. A bug shows its traceback, and is 2 as well: 1 is a finding."""
    module = module_of(name)
    try:
        command = importlib.import_module(module)
        with unwind_on_signals():
            return command.main(argv)
    except KeyboardInterrupt:
        return _said(name, "interrupted", INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name == module:
            return _said(name, "not in this installation", REFUSED)
        wanted = f"'sglang-glance[{name}]'" if name in EXTRAS else error.name
        return _said(name, f"needs the package {error.name}: pip install {wanted}", REFUSED)
    except FAILURES as error:
        return _said(name, line_of(error), REFUSED)
    except Exception:  # noqa: BLE001  the traceback is shown
        traceback.print_exc()
        return REFUSED


def module_of(name: str) -> str:
    return ".".join(filter(None, ("sglang.glance", FOLDERS.get(name), name)))


def _said(name: str, line: str, code: int) -> int:
    print(f"glance {name}: {line}", file=sys.stderr)
    return code
