"""The table of docs/losslessness.md, cell by cell: what it claims is what the servers do.

``exact``: plain decoding's tokens in fewer rounds; ``plainly``: its tokens, one a round;
``refused``: HTTP 400. ``GLANCE_WRITE_MATRIX=1`` writes the table.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from builders.features import FEATURES, Expected, verdict
from harness import Plain

DOC = Path(__file__).parents[2] / "docs" / "losslessness.md"
BEGIN, END = "<!-- matrix: test/engine/test_matrix.py -->", "<!-- end -->"
SERVERS = ("glance", "chain")
KINDS = ("text", "image", "mixed batch")


@pytest.fixture(scope="module")
def expected(plain: Plain) -> Expected:
    return Expected(plain.server)


def read_table() -> dict[str, list[str]]:
    """Each feature's six cells: the kinds by tree, then by chain."""
    table = DOC.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows[1:]}


def write_row(name: str, cells: list[str]) -> None:
    head, table, tail = re.split(
        f"({re.escape(BEGIN)}.*?)(?={re.escape(END)})", DOC.read_text(), flags=re.S
    )
    lines = [line for line in table.rstrip().splitlines() if not line.startswith(f"| {name} |")]
    lines.append(f"| {name} | {' | '.join(cells)} |")
    DOC.write_text(head + "\n".join(lines) + "\n" + tail)


@pytest.mark.parametrize("name", FEATURES)
def test_what_the_table_says(
    request: pytest.FixtureRequest, expected: Expected, questions: list[dict], name: str
) -> None:
    cells = [
        verdict(server, expected, kind, FEATURES[name], questions)
        for server in map(request.getfixturevalue, SERVERS)
        for kind in KINDS
    ]
    if os.environ.get("GLANCE_WRITE_MATRIX"):
        write_row(name, cells)
    assert read_table()[name] == cells


def test_the_table_has_no_other_rows() -> None:
    assert set(read_table()) == set(FEATURES)
