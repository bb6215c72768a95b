"""The servers of a run: started ahead of their rows, stopped after them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from gpu.rows import Row, Setup
from harness import STRICT
from sglang.glance.cli.failures import Failed
from sglang.glance.serving.arms import COLD
from sglang.glance.serving.server import Server, starting, wait_until_up
from sglang.glance.shipped import READER

LOG_LINES = 40  # of a server, kept with what failed
Start = Callable[[Setup], AbstractContextManager[Server]]


def start_in(logs: Path, device: str) -> Start:
    """Servers whose logs lie in ``logs``. All but the timed ones check their KV pool each step."""

    def start(setup: Setup) -> AbstractContextManager[Server]:
        env = COLD if setup.is_default else {**COLD, **STRICT}
        log = logs / f"{setup.name}.log"
        return starting(READER, log, *setup.flags, env=env, device=device)

    return start


class NotUp(RuntimeError):
    """A server that did not start, and the end of its log."""

    def __init__(self, setup: Setup, error: Exception, server: Server) -> None:
        super().__init__(f"{setup.name}: {error}")
        self.log = tail(server)


def tail(server: Server) -> list[str]:
    return server.tail(LOG_LINES).splitlines() if server.log.exists() else []


class Fleet:
    """``ahead``: GLANCE servers that start while another is asked."""

    def __init__(self, rows: Sequence[Row], start: Start, ahead: int) -> None:
        self.start, self.ahead = start, ahead
        self.left = [row for row in rows if row.setup]
        self.servers: dict[Setup, Server] = {}
        self.not_up: dict[Setup, NotUp] = {}
        self._running: dict[Setup, contextlib.ExitStack] = {}
        self._stopping = ThreadPoolExecutor(8)

    def boot_ahead(self) -> None:
        """Start the servers of the next rows, as many as may run at once, and wait for none."""
        setups = list(dict.fromkeys(row.setup for row in self.left))[: self.ahead + 1]
        for setup in setups:
            for each in (setup.reference, setup):
                if each not in self.servers:
                    stack = self._running[each] = contextlib.ExitStack()
                    self.servers[each] = stack.enter_context(self.start(each))

    def get(self, row: Row, timeout_s: float) -> tuple[Server, Server]:
        """The row's server and its reference, up. Raises :class:`NotUp` where one is not."""
        if not row.quiet or row.setup not in self.servers:
            self.boot_ahead()
        needed = (row.setup, row.setup.reference)
        deadline = time.monotonic() + timeout_s
        for setup in [*needed, *(self._running if row.quiet else ())]:
            self._wait(setup, deadline)
        for setup in needed:
            if setup in self.not_up:
                raise self.not_up[setup]
        return tuple(self.servers[setup] for setup in needed)

    def _wait(self, setup: Setup, deadline: float) -> None:
        server = self.servers[setup]
        try:
            if setup not in self.not_up:
                wait_until_up(server, deadline - time.monotonic())
        except Failed as error:
            self.not_up[setup] = NotUp(setup, error, server)

    def done(self, row: Row) -> None:
        """Stop what no later row needs."""
        if row in self.left:
            self.left.remove(row)
        wanted = {setup for row in self.left for setup in (row.setup, row.setup.reference)}
        for setup in [setup for setup in self._running if setup not in wanted]:
            self.stop(setup)

    def stop(self, setup: Setup) -> None:
        """In the background: a server takes seconds to end. It does not start again."""
        if setup in self._running:
            self._stopping.submit(self._running.pop(setup).close)

    def close(self) -> None:
        for setup in list(self._running):
            self.stop(setup)
        self._stopping.shutdown(wait=True)
