"""Files that people read too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def write_json(path: Path, value: Any) -> None:
    """``value``, a msgspec struct or what JSON knows, indented."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
