"""What the head needs on a CPU, where the host would take a Triton kernel or a slow product."""

from __future__ import annotations

from typing import Any

import torch


def suit_head(draft_model: Any, dtype: torch.dtype) -> None:
    """Adjust this instance of the head to a CPU: QK-norm and rotary without Triton, and in
    bfloat16 its context projection through `sgl_kernel`. Without AMX, torch's own bfloat16
    product of 16 rows costs four to five times as much."""
    for layer in draft_model.layers:
        layer.self_attn.use_table_qk_norm_rope = False
    if dtype == torch.bfloat16:
        fc = draft_model.fc
        fc.forward = lambda x: torch.ops.sgl_kernel.weight_packed_linear(x, fc.weight, None, True)
