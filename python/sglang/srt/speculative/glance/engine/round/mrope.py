"""Each request's M-RoPE delta, kept on the device from its prefill on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.speculative.glance.core.positions import mrope_positions
from sglang.srt.utils.common import async_h2d


class MropeDeltas:
    """``table [requests] int64``, by row of the request table. SGLang stacks the deltas of every
    round on the host, which would wait for a copy between draft and verify."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.table = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def note(self, req_pool_indices: torch.Tensor, mm_inputs: Sequence[Any] | None) -> None:
        """Remember the deltas of requests whose prefill starts; a text has none."""
        if mm_inputs is None:
            self.table[req_pool_indices] = 0
            return
        deltas = [0 if mm is None else int(mm.mrope_position_delta) for mm in mm_inputs]
        self.table[req_pool_indices] = async_h2d(
            deltas, dtype=torch.int64, device=self.table.device
        )

    def positions(
        self, req_pool_indices: torch.Tensor, node_positions: torch.Tensor
    ) -> torch.Tensor:
        """``[3, bs * N]`` from each node's token index ``[bs * N]``."""
        return mrope_positions(node_positions, self.table[req_pool_indices])
