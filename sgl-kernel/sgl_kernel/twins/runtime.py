"""Start-up hooks for one rank; torch keeps its thread count (OMP_NUM_THREADS)."""

from torch import Tensor

__all__ = ["init_cpu_threads_env", "initialize", "shm_allgather", "shm_allreduce"]


def init_cpu_threads_env(cpu_ids: str) -> None:
    """Pins no thread: on few cores, pinned threads starve the engine's other processes."""


def initialize(size: int, rank: int) -> None:
    if size != 1:
        raise NotImplementedError(
            f"Expected tensor parallel size 1, got {size} (rank {rank}): this sgl_kernel has no "
            "shared-memory collectives; start the server with --tp 1"
        )


def shm_allreduce(x: Tensor, op: int) -> None:
    raise NotImplementedError("shm_allreduce serves tensor parallel size > 1, which is not built")


def shm_allgather(x: Tensor, dim: int) -> Tensor:
    raise NotImplementedError("shm_allgather serves tensor parallel size > 1, which is not built")
