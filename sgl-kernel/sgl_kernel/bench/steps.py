"""Time one variant in a separate process, because SGLang chooses its kernels once, at import.

The last line printed is one JSON object: milliseconds per decode step, for every repeat.
"""

import argparse
import json
import random
import time

PROMPT_TOKENS = 128
STEPS = 64
REPEATS = 7


class Clock:
    """Milliseconds per step: wall time, and processor time, which a busy machine disturbs less."""

    def __init__(self) -> None:
        self.laps: dict[str, list[float]] = {"wall_ms": [], "cpu_ms": []}
        self.reset()

    def reset(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, fn, *args, **kwargs):
        wall, cpu = time.perf_counter(), time.process_time()
        result = fn(*args, **kwargs)
        self._wall += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu
        return result

    def lap(self) -> None:
        self.laps["wall_ms"].append(1e3 * self._wall / STEPS)
        self.laps["cpu_ms"].append(1e3 * self._cpu / STEPS)
        self.reset()


def load_runner(flags: list[str]):
    """SGLang's ModelRunner without a scheduler, as SGLang's own one-batch benchmark loads it."""
    from sglang.benchmark import one_batch
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    server_args = ServerArgs.from_cli_args(parser.parse_args(flags))
    server_args.resolve_once()
    one_batch._set_envs_and_config(server_args)
    world_rank = spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=world_rank, gpu_id=0))
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(server_args, PortArgs.init_new(server_args), 0, 0)
    return runner


def runner_steps(flags: list[str], prompt: list[int]) -> dict[str, dict[str, list[float]]]:
    """Times of a ModelRunner step (batch, forward, sampling) and of the model's forward in it."""
    from sglang.benchmark import one_batch

    runner = load_runner(flags)
    step, forward = Clock(), Clock()
    model = runner.torch_runner.model
    untimed = model.forward
    model.forward = lambda *args, **kwargs: forward.run(untimed, *args, **kwargs)
    for repeat in range(REPEATS + 1):
        runner.clear()
        reqs = one_batch.prepare_synthetic_inputs_for_latency_test(1, len(prompt), [prompt])
        token, _, batch = runner.extend(reqs)
        forward.reset()
        for _ in range(STEPS):
            token, _ = step.run(runner.decode, token, batch)
        if repeat == 0:  # warm-up
            step.reset()
            continue
        step.lap()
        forward.lap()
    return {"runner_step": step.laps, "model_forward": forward.laps}


def engine_steps(flags: list[str], prompt: list[int]) -> dict[str, dict[str, list[float]]]:
    """The time between tokens for a caller of the engine, scheduler and detokenizer included."""
    import psutil
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    engine = Engine(server_args=ServerArgs.from_cli_args(parser.parse_args(flags)))
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    laps: dict[str, list[float]] = {"wall_ms": [], "cpu_ms": []}
    params = {"temperature": 0, "max_new_tokens": STEPS + 1, "ignore_eos": True}
    for repeat in range(REPEATS + 1):
        start = cpu = None
        for _ in engine.generate(input_ids=prompt, sampling_params=params, stream=True):
            if start is None:  # the first token ends the prefill
                start, cpu = time.perf_counter(), _cpu_seconds(processes)
        if repeat > 0:
            laps["wall_ms"].append(1e3 * (time.perf_counter() - start) / STEPS)
            laps["cpu_ms"].append(1e3 * (_cpu_seconds(processes) - cpu) / STEPS)
    engine.shutdown()
    return {"engine_step": laps}


def _cpu_seconds(processes: list) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", choices=["runner", "engine"])
    parser.add_argument("vocab_size", type=int)
    args, flags = parser.parse_known_args()
    rng = random.Random(0)
    prompt = [rng.randrange(args.vocab_size) for _ in range(PROMPT_TOKENS)]
    measure = {"runner": runner_steps, "engine": engine_steps}[args.level]
    print(json.dumps(measure(flags, prompt)), flush=True)


if __name__ == "__main__":
    main()
