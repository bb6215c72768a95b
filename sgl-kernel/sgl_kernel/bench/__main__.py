"""Time a bf16 decode step of every variant in turn and print a table."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from sgl_kernel.bench.steps import PROMPT_TOKENS, REPEATS, STEPS

# SGLang loads only the plugins named here, so SGLang gets torch's own answer about AMX.
NO_PLUGINS = {"SGLANG_PLUGINS": "none"}

# name: (attention backend, environment variables, description)
VARIANTS = {
    "cpp": ("intel_amx", {}, "the C++ ops of this package"),
    "twins": ("intel_amx", {"SGL_KERNEL_CPU_TWINS": "1"}, "the torch twins of this package"),
    "torch_native": ("torch_native", NO_PLUGINS, "SGLang without the ops of this package"),
}
LEVELS = {
    "engine_step": "the time between two tokens for a caller of the engine",
    "runner_step": "the ModelRunner's batch set-up, forward and sampling",
    "model_forward": "the model's forward alone",
}


def measure(variant: str, level: str, model_path: Path, vocab_size: int) -> dict:
    backend, environment, _ = VARIANTS[variant]
    flags = ["--model-path", str(model_path), "--device", "cpu", "--dtype", "bfloat16"]
    flags += [
        "--attention-backend",
        backend,
        "--mem-fraction-static",
        "0.2",
        "--log-level",
        "error",
    ]
    flags += ["--max-total-tokens", "4096", "--max-running-requests", "2"]
    command = [sys.executable, "-m", "sgl_kernel.bench.steps", level, str(vocab_size), *flags]
    done = subprocess.run(
        command,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{variant} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(results: dict[str, dict]) -> str:
    lines = [f"{'ms a step':<16}{'variant':<14}{'best':>8}{'median':>8}{'cpu':>8}{'vs cpp':>8}"]
    for level, meaning in LEVELS.items():
        base = min(results["cpp"][level]["wall_ms"])
        for variant, levels in results.items():
            wall, cpu = levels[level]["wall_ms"], levels[level]["cpu_ms"]
            lines.append(
                f"{level:<16}{variant:<14}{min(wall):>8.2f}{statistics.median(wall):>8.2f}"
                f"{min(cpu):>8.2f}{min(wall) / base:>7.2f}x"
            )
        lines.append(f"  {level}: {meaning}")
    lines += [f"  {name}: {meaning}" for name, (_, _, meaning) in VARIANTS.items()]
    lines.append(
        f"  bf16, batch 1, {PROMPT_TOKENS} prompt tokens, {REPEATS} repeats of {STEPS} steps; cpu: "
        "least processor time of a repeat; vs cpp: ratio of the best times"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="sgl_kernel.bench", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="write the times of every repeat to this file")
    args = parser.parse_args()
    config = json.loads((args.model_path / "config.json").read_text())
    vocab_size = config.get("text_config", config)["vocab_size"]
    results: dict[str, dict] = {}
    for variant in VARIANTS:
        results[variant] = {}
        for level in ("runner", "engine"):
            print(f"measuring {variant}, {level} ...", file=sys.stderr, flush=True)
            results[variant] |= measure(variant, level, args.model_path, vocab_size)
    print(table(results))
    if args.json is not None:
        machine = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "processor": platform.processor() or platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": sys.argv,
        }
        record = {"machine": machine, "steps": STEPS, "repeats": REPEATS, "results": results}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
