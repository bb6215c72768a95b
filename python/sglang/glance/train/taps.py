"""The target's states of every row: kept on disk, or computed when asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sglang.glance.cli.files import whole
from sglang.glance.prompts.rows import InputError
from sglang.glance.train.blocks import TappedRow

ROWS_A_SHARD = 64
Tap = Callable[[int], TappedRow]


class CacheKey(msgspec.Struct, frozen=True):
    """What the cached states depend on. ``rows``: hash of prompts, answers and pictures."""

    model: str
    dtype: str
    taps: tuple[int, ...]
    rows: str


class TapCache:
    """Row i of ``num_rows`` lies in a safetensors shard, which is mapped and not read whole."""

    def __init__(self, folder: Path, num_rows: int, key: CacheKey) -> None:
        self.folder, self.num_rows = folder, num_rows
        self._open: dict[Path, object] = {}
        folder.mkdir(parents=True, exist_ok=True)
        label, text = folder / "key.json", msgspec.json.encode(key).decode()
        if not label.exists():
            label.write_text(text)
        if json.loads(label.read_text()) != json.loads(text):
            raise InputError(
                f"{folder} holds the states of other rows, taps or another target; remove it or "
                "choose another --out"
            )

    @property
    def num_missing(self) -> int:
        starts = range(0, self.num_rows, ROWS_A_SHARD)
        return sum(len(self._rows(s)) for s in starts if not self._shard(s).exists())

    def fill(self, tap: Tap, advance: Callable[[int], None]) -> None:
        """Write the shards that are missing, each at once."""
        for start in range(0, self.num_rows, ROWS_A_SHARD):
            if self._shard(start).exists():
                continue
            tensors = {}
            for index in self._rows(start):
                row = tap(index)
                tensors[f"ids.{index}"] = row.ids.int()
                tensors[f"prompt_len.{index}"] = torch.tensor([row.prompt_len])
                tensors[f"taps.{index}"] = row.taps.contiguous()
                advance(1)
            with whole(self._shard(start)) as part:
                save_file(tensors, part)

    def __call__(self, index: int) -> TappedRow:
        path = self._shard(index - index % ROWS_A_SHARD)
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        get = self._open[path].get_tensor
        prompt_len = int(get(f"prompt_len.{index}"))
        return TappedRow(get(f"ids.{index}").long(), prompt_len, get(f"taps.{index}"))

    def _rows(self, start: int) -> range:
        return range(start, min(start + ROWS_A_SHARD, self.num_rows))

    def _shard(self, start: int) -> Path:
        return self.folder / f"rows-{start:07}.safetensors"
