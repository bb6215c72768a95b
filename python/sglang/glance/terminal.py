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


def table(title: str, *left: str, right: tuple[str, ...] = ()) -> Table:
    """``left``: columns of text; ``right``: columns of numbers, after them."""
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.show_edge, out.pad_edge = False, False
    for name in left:
        out.add_column(name, overflow="fold")
    for name in right:
        out.add_column(name, justify="right", overflow="fold")
    return out


def note(console: Console, text: str) -> None:
    """A sentence that may hold anything: no markup is read, no line is cut for piping."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)
