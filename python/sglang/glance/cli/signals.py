"""Signals that end a command: its ``finally`` blocks run, so that its servers stop too."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit that runs ``finally`` blocks."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {name: signal.signal(name, leave) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
