"""Would a server of this target and this head start in this very shell?

A process of its own tries it with the flags of a server, up to where weights would be loaded; flags
behind ``--`` are added. The head's weights are read. Exit code: 0 it would start, 1 it would not,
2 the flags are wrong.
"""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sglang.glance.check.doctor.findings import Findings, Report, Row
from sglang.glance.cli.options import Parser, add_models, settle_models
from sglang.glance.cli.progress import waiting
from sglang.glance.cli.terminal import messages, output, paste, table

MARKS = {None: "", True: "[green]ok[/]", False: "[red]no[/]"}


def _parser() -> argparse.ArgumentParser:
    parser = Parser("doctor", __doc__)
    add_models(parser)
    parser.add_argument("--verbose", action="store_true", help="all that was looked at")
    parser.add_argument("--json", action="store_true", help="all of it as JSON")
    parser.usage = f"{parser.format_usage().removeprefix('usage: ').strip()} [-- FLAGS]"
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    given = sys.argv[1:] if argv is None else list(argv)
    at = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:at])
    settle_models(parser, options)
    # After the parser, so that --help does not import torch.
    from sglang.glance.check.doctor.diagnose import diagnose

    with waiting(messages(), "trying it as a server would"):
        report = diagnose(options.model_path, options.head_path, given[at + 1 :])
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        show(report, options.verbose, output())
    return 1 if report.problems else 0


def show(report: Report, verbose: bool, console: Console) -> None:
    if verbose:
        for title in Findings.__struct_fields__:
            rows = getattr(report.findings, title)
            if isinstance(rows, list):
                console.print(_rows(title, rows), "")
    console.print(_rows("", report.summary), "")
    if report.problems:
        console.print("[red]GLANCE cannot start here")
        return
    console.print("GLANCE can start here:")
    paste(console, report.command)


def _rows(title: str, rows: list[Row]) -> Table:
    out = table(title, "", "name", "detail")
    out.show_header = False
    for row in rows:
        name = Text(row.name.removeprefix("sglang.srt."))
        out.add_row(MARKS[row.ok], name, Text(row.detail))
    return out
