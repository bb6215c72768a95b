"""Muon, with its orthogonalisation in the precision the device multiplies fast."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)  # as torch.optim.Muon
MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """As ``torch.optim.Muon(weight_decay=0, adjust_lr_fn="match_rms_adamw")``: an update has the
    root mean square that AdamW's would have at the same rate. That class multiplies in bfloat16
    everywhere, which a CPU without AMX or AVX-512 BF16 does forty times slower than float32."""

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
                weight.add_(update, alpha=-0.2 * max(weight.shape) ** 0.5 * group["lr"])


def orthogonal(matrix: Tensor, num_steps: int = 5) -> Tensor:
    """About U V^T of ``matrix``'s singular value decomposition, by Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(num_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)
