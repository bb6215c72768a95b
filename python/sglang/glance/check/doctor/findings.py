"""What a look at this machine, a target and a head yields."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One line. ``ok`` is None where there is nothing to judge."""

    name: str
    detail: str
    ok: bool | None = None


class Findings(msgspec.Struct, frozen=True):
    """Of the host. ``settled``: what the tried flags come to; ``refusal``: why a server would not
    start, or None."""

    installed: list[Row]
    device: list[Row]
    backends: list[Row]
    surface: list[Row]
    adjustments: list[Row]
    settled: dict[str, str | int | None]
    refusal: str | None


class Report(msgspec.Struct, frozen=True):
    """``summary``: a screen of rows; ``command``: what starts the server; ``problems``: why it
    would not start, empty where it would."""

    summary: list[Row]
    findings: Findings
    command: str
    problems: list[str]
