"""The checks that need an NVIDIA GPU, as one script: ``make test-gpu``, under 8 minutes.

1. every kernel against its twin in core/, on the device;
2. the shipped model on a real server, once plain and with GLANCE: attention backend by attention
   backend, with CUDA graphs and without, once without overlap scheduling. In float32 (triton) the
   ids must be equal; in bfloat16 each divergence is printed with the target's top-2 margin there.

Exit code 0 only if all of it holds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from builders.floors import ACCEPT_LEN_READ
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import load_prompts
from sglang.glance.serving.server import Answer, serve
from sglang.glance.shipped import HEAD, PICTURES, READER

ROOT = Path(__file__).resolve().parents[2]
GPU_FLAGS = ("--mem-fraction-static", "0.3", "--max-running-requests", "8")
NEAR_TIE = 0.5  # nats between the two best tokens; bfloat16 logits of this size step by 0.06-0.12


class Arm(NamedTuple):
    backend: str
    dtype: str
    graphs: bool
    overlap: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        eager = () if self.graphs else ("--disable-cuda-graph",)
        return ("--attention-backend", self.backend, "--dtype", self.dtype, *eager)


ARMS = (
    Arm("triton", "float32", graphs=False),
    Arm("triton", "float32", graphs=False, overlap=False),
    Arm("flashinfer", "bfloat16", graphs=True),
    Arm("flashinfer", "bfloat16", graphs=False),
    Arm("triton", "bfloat16", graphs=True),
    Arm("fa3", "bfloat16", graphs=True),
)


def shipped_prompts() -> list[dict]:
    prompter = Prompter(READER)
    return [prompter.request(row) for row in load_prompts(PICTURES)]


def answers(flags: tuple[str, ...], log: Path) -> list[Answer]:
    """The shipped prompts one by one, then eight at a time: 40 answers with top-2 logprobs."""
    prompts = shipped_prompts()
    for prompt in prompts:
        prompt["extra"] = {"return_logprob": True, "top_logprobs_num": 2}
    with serve(READER, log, *GPU_FLAGS, *flags) as server:
        return server.generate_all(prompts, parallel=1) + server.generate_all(prompts, parallel=8)


def margin(answer: Answer, step: int) -> float:
    """Nats between the two most likely tokens at output position ``step``."""
    best = sorted((row[0] for row in answer.meta["output_top_logprobs"][step]), reverse=True)
    return best[0] - best[1]


def divergences(plain: list[Answer], drafted: list[Answer]) -> list[float]:
    """Plain decoding's margin at each answer's first different token."""
    margins = []
    for ours, theirs in zip(drafted, plain, strict=True):
        if ours.ids != theirs.ids:
            pairs = zip(ours.ids, theirs.ids, strict=False)
            step = next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours.ids) - 1)
            margins.append(margin(theirs, min(step, len(theirs.ids) - 1)))
    return margins


def check_arm(arm: Arm, folder: Path, known: dict[tuple[str, ...], list[Answer]]) -> bool:
    """``known``: plain decoding's answers by flags; it overlaps in every arm."""
    if arm.backend == "fa3" and torch.cuda.get_device_capability()[0] not in (8, 9):
        print(f"left out {arm}: FlashAttention 3 needs SM 8.x or 9.x", flush=True)
        return True
    glance = ("--speculative-algorithm", "GLANCE", "--speculative-draft-model-path", str(HEAD))
    if not arm.overlap:
        glance += ("--disable-overlap-schedule",)
    if arm.flags not in known:
        known[arm.flags] = answers(arm.flags, folder / "plain.log")
    plain = known[arm.flags]
    drafted = answers(arm.flags + glance, folder / "glance.log")
    margins = divergences(plain, drafted)
    grounded = [
        answer
        for answer, prompt in zip(drafted, shipped_prompts() * 2, strict=True)
        if prompt["task"] in ("document", "chart")
    ]
    per_round = sum(len(a.ids) - 1 for a in grounded) / sum(a.rounds for a in grounded)
    bound = 0.0 if arm.dtype == "float32" else NEAR_TIE
    good = per_round >= ACCEPT_LEN_READ and all(m < bound for m in margins)
    print(
        f"{'ok  ' if good else 'FAIL'} {arm}: {len(margins)} of {len(drafted)} answers diverge, "
        f"margins {[round(m, 4) for m in margins]}, {per_round:.2f} tokens a round",
        flush=True,
    )
    return good


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device: these checks need one", file=sys.stderr)
        return 2
    kernels = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            str(ROOT / "test/unit/kernels_glance"),
            str(ROOT / "test/unit/core"),
        ],
        check=False,
    )
    known: dict[tuple[str, ...], list[Answer]] = {}
    with tempfile.TemporaryDirectory() as folder:
        arms = [check_arm(arm, Path(folder), known) for arm in ARMS]
    return 0 if kernels.returncode == 0 and all(arms) else 1


if __name__ == "__main__":
    raise SystemExit(main())
