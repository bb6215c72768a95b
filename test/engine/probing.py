"""A server seen from inside: the probe plugin, whose drafter puts the right token last."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import READER, Rounds, Server, glance_flags, start

BUDGET = 63  # with two candidates an offset: a full binary tree, five drafts deep


@dataclass
class Probe:
    server: Server
    events: Path
    rounds: Rounds

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Callable[[str], list[dict[str, torch.Tensor]]]]:
        """Within, the target's states (kind ``states``) and the head's candidates (``drafts``) of
        every pass are kept; the function reads those of a kind, in order."""
        folder = self.events.with_name("tensors")
        folder.mkdir()
        try:
            yield lambda kind: [torch.load(path) for path in sorted(folder.glob(f"{kind}-*"))]
        finally:
            shutil.rmtree(folder)

    def of(self, kind: str) -> list[dict]:
        rows = map(json.loads, self.events.read_text().splitlines())
        return [row for row in rows if row["kind"] == kind]


def entry_point(folder: Path, plugin: str = "glance_probe:register") -> str:
    """A distribution that names a plugin of ``probe/``; the ``PYTHONPATH`` that shows both."""
    info = folder / "glance_probe-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: glance-probe\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nprobe = {plugin}\n")
    paths = [str(folder), str(Path(__file__).parent / "probe"), os.environ.get("PYTHONPATH")]
    return os.pathsep.join(filter(None, paths))


@contextlib.contextmanager
def start_probed(folder: Path) -> Iterator[Probe]:
    env = {
        "PYTHONPATH": entry_point(folder),
        "GLANCE_PROBE": str(folder / "events.jsonl"),
        "SGLANG_GLANCE_ROUND_LOG": str(folder / "rounds.jsonl"),
    }
    flags = glance_flags(budget=BUDGET, topk=2, chunk=48)
    with start(READER, folder / "server.log", *flags, env=env) as server:
        yield Probe(server, folder / "events.jsonl", Rounds(folder / "rounds.jsonl"))
