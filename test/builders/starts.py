"""What a launcher settles or refuses, command line by command line, in one process of its own.

Run as a script it reads ``{name: flags}`` from stdin and prints a JSON line a case. The process
imports SGLang and loads its plugins once; every case makes its own ServerArgs.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

SWITCH = "SGLANG_USE_CPU_ENGINE"


def resolve_all(cases: Mapping[str, Sequence[str]], **env: str) -> dict[str, dict]:
    """In a shell that has no switch for SGLang's CPU path, unless ``env`` sets one.

    By case: ``ended``, "resolved" or the exception's name; ``line``, its message; ``log``, GLANCE's
    own lines; of a resolved one the fields of :func:`_settled` too.
    """
    shell = {name: value for name, value in os.environ.items() if name != SWITCH}
    ran = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(cases),
        env={**shell, "TRITON_INTERPRET": "0", "HF_HUB_OFFLINE": "1", **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr[-4000:])
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"name"')]
    return {row["name"]: row for row in rows}


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _settled(flags: Sequence[str]) -> dict:
    """``dtype``, ``target_dtype`` and ``draft_dtype``: the flag's, and what both runners get."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import prepare_server_args

    args = prepare_server_args(list(flags))
    args.resolve_once()
    view = resolving_view(args)
    draft = ModelConfig.from_server_args(
        args, model_path=view.speculative_draft_model_path, is_draft_model=True
    )
    return {
        "device": view.device,
        "dtype": view.dtype,
        "target_dtype": str(model_config_of(args).dtype),
        "draft_dtype": str(draft.dtype),
        "max_total_tokens": view.max_total_tokens,
        "switch": os.environ.get(SWITCH),
    }


def main() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    ours = logging.getLogger("sglang.srt.speculative.glance")
    ours.setLevel(logging.INFO)
    for name, flags in json.load(sys.stdin).items():
        lines = _Lines()
        ours.addHandler(lines)
        try:
            out = {"ended": "resolved", "line": "", **_settled(flags)}
        except (Exception, SystemExit) as end:  # noqa: BLE001  the outcome is the result
            out = {"ended": type(end).__name__, "line": str(end)}
        ours.removeHandler(lines)
        print(json.dumps({"name": name, **out, "log": lines.lines}), flush=True)


if __name__ == "__main__":
    main()
