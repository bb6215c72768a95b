"""Run as a script: what of SGLang is another object once this plugin is installed. One JSON list.

In a process that has loaded no plugin: every module that GLANCE touches is imported first, then the
plugins run and their hooks are applied, as in every process of a server.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang.srt.speculative.glance.engine.host import seams


def things() -> dict[str, Any]:
    """``module.name`` and ``module.class.name`` of all that SGLang has loaded."""
    found: dict[str, Any] = {}
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith("sglang.") or ".glance" in module_name:
            continue
        for name, thing in list(vars(module).items()):
            found[f"{module_name}.{name}"] = thing
            if isinstance(thing, type) and thing.__module__ == module_name:
                inside = vars(thing).items()
                found |= {f"{module_name}.{name}.{key}": value for key, value in inside}
    return found


def main() -> None:
    seams.rows()
    before = things()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    after = things()
    print(json.dumps(sorted(name for name in before if after.get(name) is not before[name])))


if __name__ == "__main__":
    main()
