"""What every test shares: builders to import, and the marker of tests too long for each run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "engine")]  # pytest's importlib mode adds no folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: outside the default run; `make test-slow` runs them")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every prompt, of every shape of GLANCE")
