"""The table of docs/losslessness.md, cell by cell: what it claims is what the servers do.

``exact``: plain decoding's tokens in fewer rounds; ``plainly``: its tokens, one a round;
``refused``: HTTP 400. ``GLANCE_WRITE_MATRIX=1`` writes the table.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
import requests as http
from builders.features import FEATURES, Feature, ask, requests_of
from harness import Answer, Plain, Server, assert_identical, chat

DOC = Path(__file__).parents[2] / "docs" / "losslessness.md"
BEGIN, END = "<!-- matrix: test/engine/test_matrix.py -->", "<!-- end -->"
SERVERS = ("glance", "chain")
KINDS = ("text", "image", "mixed batch")


class Expected:
    """Plain decoding's answers; no question is asked twice."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.known: dict[str, list[Answer]] = {}

    def __call__(self, request: dict, feature: Feature) -> list[Answer]:
        key = repr((request, feature))
        if key not in self.known:
            self.known[key] = ask(self.server, request, feature)
        return self.known[key]


@pytest.fixture(scope="module")
def expected(plain: Plain) -> Expected:
    return Expected(plain.server)


def verdict(
    served: Server, expected: Expected, kind: str, feature: Feature, questions: list[dict]
) -> str:
    """What the requests got; in a mixed batch, two plain greedy ones beside them stay right."""
    asked = [(request, feature) for request in requests_of(kind, questions)]
    beside = [(questions[3], Feature()), ({"text": chat("Count: 1, 2, 3,")}, Feature())]
    jobs = asked + beside if kind == "mixed batch" else asked
    try:
        with ThreadPoolExecutor(len(jobs) if kind == "mixed batch" else 1) as pool:
            got = list(pool.map(lambda job: ask(served, *job), jobs))
    except http.HTTPError as error:
        if error.response.status_code != 400:
            raise
        return "refused"
    assert_identical([*chain(*got)], [*chain(*(expected(*job) for job in jobs))])
    answers = chain(*got[: len(asked)])
    return "exact" if any(a.rounds < len(a.ids) - 1 for a in answers) else "plainly"


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
