"""Make the overlay importable from a checkout whose package is not installed."""

import importlib.util
from pathlib import Path

if importlib.util.find_spec("sglang.srt.speculative.glance") is None:
    import sglang

    sglang.__path__.append(str(Path(__file__).parents[3] / "python" / "sglang"))
