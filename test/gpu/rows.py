"""What is checked on a GPU: the servers, what each is asked, and in which order.

A row is one check of one server. All checks of a server are made in one start, which is what takes
the time: some 40 s. Servers of the tiny shipped model run side by side, ``LANES`` at a time. The
order is that of telling most first: each backend once as it is served by default, then what every
request may ask for, then the rest of the matrix.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

LANES = 5
LARGEST_GRAPH = 4  # requests; `crowd` asks with more at once
# With overlap scheduling plain decoding counts a token for its penalties one step late.
NO_OVERLAP = ("--disable-overlap-schedule",)
TREE, CHAIN = (), ("--speculative-eagle-topk", "1")
# What every request may ask for, `checks.py`.
EVERYTHING = ("alone", "crowd", "cold", "penalties", "bias", "grammar", "logprobs", "context")
FEW = ("alone", "crowd")
SHARED = ("--mem-fraction-static", "0.5", "--max-total-tokens", "60000")
SHARED += ("--max-running-requests", "16")


class Arm(NamedTuple):
    """A server. ``reference``: the plain arm it is compared with, None for a plain one."""

    name: str
    flags: tuple[str, ...]
    checks: tuple[str, ...]
    reference: str | None = None
    exact: bool = False  # float32: ids must be equal

    @property
    def chain(self) -> bool:
        return set(CHAIN) <= set(self.flags)

    @property
    def rows(self) -> list[str]:
        return [f"{self.name}/{check}" for check in self.checks]


def on_a_gpu() -> list[Arm]:
    plain = [
        _gpu_arm("triton", "float32", (*EVERYTHING, "seeded")),
        _gpu_arm("flashinfer", "bfloat16", EVERYTHING),
        _gpu_arm("fa3", "bfloat16", (*FEW, "context")),
    ]
    first = [
        _gpu_arm("flashinfer", "bfloat16", EVERYTHING, TREE),
        _gpu_arm("triton", "float32", (*EVERYTHING, "seeded"), TREE),
        _gpu_arm("fa3", "bfloat16", FEW, TREE),
        _gpu_arm("triton", "float32", EVERYTHING, TREE, overlap=False),
        _gpu_arm("flashinfer", "bfloat16", (*FEW, "context"), TREE, overlap=False),
    ]
    rest = []
    for page, graphs, shape in product((1, 16), (True, False), (TREE, CHAIN)):
        for backend, dtype in (
            ("flashinfer", "bfloat16"),
            ("triton", "float32"),
            ("fa3", "bfloat16"),
        ):
            arm = _gpu_arm(backend, dtype, (*FEW, "context"), shape, page=page, graphs=graphs)
            if arm.name not in {one.name for one in first}:
                rest.append(arm)
    return plain + first + rest


def _gpu_arm(
    backend: str,
    dtype: str,
    checks: tuple[str, ...],
    shape: tuple[str, ...] | None = None,
    *,
    page: int = 1,
    graphs: bool = True,
    overlap: bool = True,
) -> Arm:
    """``shape``: of GLANCE's tree; None for plain decoding."""
    flags = (*SHARED, "--attention-backend", backend, "--dtype", dtype)
    flags += ("--page-size", str(page))
    flags += ("--cuda-graph-max-bs", str(LARGEST_GRAPH)) if graphs else ("--disable-cuda-graph",)
    flags += () if overlap else NO_OVERLAP
    flags += ("--enable-deterministic-inference",) if "seeded" in checks else ()
    name = f"{backend}-{dtype}"
    if shape is None:
        return Arm(f"plain-{name}", (*flags, *NO_OVERLAP), checks)
    parts = [name, "chain" if shape else "tree", f"page{page}", "graphs" if graphs else "eager"]
    parts += [] if overlap else ["no-overlap"]
    return Arm("-".join(parts), (*flags, *shape), checks, f"plain-{name}", dtype == "float32")


def on_a_cpu() -> list[Arm]:
    """The same checks where there is no card: what they prove there `make test` proves too; they
    show that this program works."""
    flags = ("--dtype", "float32")
    return [
        Arm("plain-cpu", (*flags, *NO_OVERLAP), EVERYTHING),
        Arm("cpu-tree", flags, EVERYTHING, "plain-cpu", exact=True),
        Arm("cpu-chain", (*flags, *CHAIN), FEW, "plain-cpu", exact=True),
    ]
