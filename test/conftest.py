"""What every test shares: the marker for tests that take longer than a run of the suite may."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: outside the default run; `make test-slow` runs them")
