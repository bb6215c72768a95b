"""What people read: 80 columns, or the terminal's, or ``COLUMNS`` where output is piped."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def output() -> Console:
    """Standard output, where results go."""
    return Console(highlight=False, emoji=False)


def messages() -> Console:
    """Standard error, where progress goes."""
    return Console(highlight=False, emoji=False, stderr=True)


def table(title: str, *left: str, right: tuple[str, ...] = (), gap: int = 2) -> Table:
    """``left``: columns of text; ``right``: columns of numbers, after them; ``gap``: spaces between
    two columns, at least one."""
    out = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    out.padding, out.show_edge, out.pad_edge = (0, gap - 1, 0, 0), False, False
    for name in left:
        out.add_column(name, overflow="fold")
    for name in right:
        out.add_column(name, justify="right", overflow="fold")
    return out


def note(console: Console, text: str) -> None:
    """A sentence that may hold anything: no markup is read."""
    console.print(text, markup=False)


def paste(console: Console, command: str) -> None:
    """One line, however long."""
    console.print(command, markup=False, soft_wrap=True)
