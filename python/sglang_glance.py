"""Entry points of the GLANCE overlay: SGLang's plugin, and the command line.

SGLang calls :func:`register` in every engine process through the entry-point group
``sglang.srt.plugins``; the console script ``glance`` calls :func:`main`. Nothing of SGLang is
imported before that: its own import takes seconds.
"""

from __future__ import annotations

import sys
from importlib import metadata, util
from pathlib import Path

__version__ = "0.1.0"

COMMANDS = {
    "doctor": "whether a target and a head can be served here, and why not",
    "demo": "ask plain decoding and GLANCE about the same pictures, compare",
    "audit": "send the same requests to both, compare the tokens",
    "bench": "time plain decoding and GLANCE, split a round into its phases",
    "law": "fit the entropy law to GLANCE's rounds, per task and pooled",
    "train": "make a GLANCE head for a target, from prompts and pictures",
    "tasks": "make pictures with questions: captions, charts, documents, ...",
    "reader": "train the small reader that is shipped on the tasks",
}
USAGE = "usage: glance COMMAND [--help] | --version\n\n" + "\n".join(
    f"  {name:8} {what}" for name, what in COMMANDS.items()
)
HELP = {"-h", "--help"}


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


def main(argv: list[str] | None = None) -> int:
    """``glance``: the offline tools, whatever way SGLang is installed. Returns the exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in HELP:
        print(USAGE)
        return 0
    if name == "--version":
        print(version())
        return 0
    if name not in COMMANDS:
        print(f"glance: no command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        if HELP & set(rest):
            _leave_host_unexecuted()
        extend_host_path()
    except KeyboardInterrupt:
        return 130
    except ImportError as error:
        print(f"glance: no sglang ({error}): install sglang==0.5.23", file=sys.stderr)
        return 2
    from sglang.glance.cli.run import run

    return run(name, rest)


def version() -> str:
    try:
        host = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        host = "absent"
    return f"glance {__version__} (sglang {host})"


def _leave_host_unexecuted() -> None:
    """For a command's ``--help``: the package ``sglang`` as a name and a path, without the seconds
    that its ``__init__`` takes. The process ends once help is printed."""
    spec = util.find_spec("sglang") if "sglang" not in sys.modules else None
    if spec is not None:
        sys.modules["sglang"] = util.module_from_spec(spec)


if __name__ == "__main__":
    raise SystemExit(main())
