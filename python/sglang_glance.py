"""Entry point of the GLANCE overlay: makes the overlay importable, then registers the algorithm.

SGLang calls :func:`register` in every engine process through the entry-point group
``sglang.srt.plugins``. Nothing of SGLang is imported before that.
"""

from __future__ import annotations

import sys
from pathlib import Path

__version__ = "0.1.0"


def extend_host_path() -> None:
    """Let ``import sglang.<ours>`` find the overlay beside an editable or a foreign SGLang.

    A wheel of ours lies inside the installed package and needs nothing. When SGLang itself is an
    editable install, or we are, the two trees differ and ours is appended to ``sglang.__path__``.
    """
    import sglang

    overlay = str(Path(__file__).resolve().parent / "sglang")
    if overlay not in map(str, sglang.__path__):
        sglang.__path__.append(overlay)


def register() -> None:
    """Register GLANCE with the running SGLang; see ``glance.engine.plugin.register``."""
    extend_host_path()
    from sglang.srt.speculative.glance.engine import plugin

    plugin.register()


def main() -> int:
    """``python -m sglang_glance``: the offline tools, whatever way SGLang is installed."""
    try:
        extend_host_path()
    except ImportError as error:
        print(f"sglang cannot be imported: {error}; install sglang==0.5.23", file=sys.stderr)
        return 1
    from sglang.glance.__main__ import main as tools

    return tools()


if __name__ == "__main__":
    raise SystemExit(main())
