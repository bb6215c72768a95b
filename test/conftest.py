"""What every test shares: builders to import, and the marker of tests too long for each run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "engine")]  # pytest's importlib mode adds no folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: outside the default run; `make test-slow` runs them")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every prompt, of every shape of GLANCE")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other by spinning take many times as long beside other work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
