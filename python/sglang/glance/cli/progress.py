"""The one progress bar, and the one way to show that a server starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[..., None]
REPORT_S = 30.0  # between two lines where there is no terminal


@contextmanager
def bar(console: Console, what: str, total: int) -> Iterator[Advance]:
    """Counts, time passed and time left. The function it yields takes how much was done, and a
    text that is shown behind the bar."""
    columns = [TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn()]
    columns += [TimeElapsedColumn(), TimeRemainingColumn(), _last_column()]
    reported = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total, said="")

        def advance(done: int = 1, said: str = "") -> None:
            nonlocal reported
            progress.update(task, advance=done, said=said)
            if not console.is_terminal and time.monotonic() - reported > REPORT_S:
                reported, at = time.monotonic(), int(progress.tasks[task].completed)
                console.print(f"{what}: {at}/{total} {said}".rstrip(), markup=False)

        yield advance


def _last_column() -> TextColumn:
    return TextColumn("{task.fields[said]}", markup=False)


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """``what`` with the seconds that pass, and with all of them at the end."""
    started = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    if not console.is_terminal:
        console.print(f"{what} ...", markup=False, highlight=False, soft_wrap=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        progress.add_task(what, total=None)
        yield
    took = time.perf_counter() - started
    console.print(f"{what}: {took:.0f} s", markup=False, highlight=False, soft_wrap=True)
