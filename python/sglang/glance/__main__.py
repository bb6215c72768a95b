"""``python -m sglang.glance COMMAND``: the offline tools."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "doctor": "what is installed, and whether GLANCE can start here",
    "demo": "ask plain decoding and GLANCE about the same pictures, compare",
    "audit": "send the same requests to plain decoding and GLANCE, compare the tokens",
    "train": "make a GLANCE head for a target, from prompts and pictures",
    "reader": "train the small reader that is shipped on the tasks",
    "tasks": "make pictures with questions: captions, scene text, infographics, documents, charts",
    "bench": "time plain decoding and GLANCE, split a round into its phases",
    "law": "fit the entropy law to GLANCE's rounds, per task and pooled",
}
USAGE = "usage: python -m sglang.glance COMMAND [--help]\n\n" + "\n".join(
    f"  {name:8} {what}" for name, what in COMMANDS.items()
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; its module is imported only now. Returns the exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        print(f"sglang.glance has no command {name!r}: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = f"sglang.glance.{name}"
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            line = f"sglang.glance {name} is not in this installation"
        else:
            line = f"sglang.glance {name} needs the package {error.name}: pip install {error.name}"
        print(line, file=sys.stderr)
        return 2
    return command.main(rest)


if __name__ == "__main__":
    sys.exit(main())
