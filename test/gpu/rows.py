"""What is tried, on which servers, in which order.

Every GLANCE server is compared with a plain one of its dtype, which runs until its last comparison
is done. On a card the next servers start while one is asked: a start takes 30 to 60 s, nearly all
of it on one core, and the rows of one server 5 to 15 s. With ``AHEAD`` starting at a time, 18 of
GLANCE and 3 plain ones fit 8 minutes. No share of the card's memory is set: every pool is bounded
by its tokens (``short_lived`` in ``sglang.glance.serving.flags``), and a server takes a few GiB.

One server covers graphs and eager rounds: its largest graph holds ``LARGEST_GRAPH`` requests, and
``above the largest graph`` asks more at a time. Three servers capture none at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from gpu import alone, checks
from gpu.checks import LARGEST_GRAPH, MOST_AT_A_TIME, SHORT_CONTEXT
from harness import GLANCE
from sglang.srt.speculative.glance.engine.start.survey import backends

BACKENDS = ("flashinfer", "triton", "fa3")
PAGES, TREE, CHAIN = (1, 16), True, False
AHEAD = {"cuda": 4, "cpu": 0}


@dataclass(frozen=True)
class Setup:
    """One server. ``backend`` None: everything as SGLang and GLANCE choose it. ``seeded``: with
    batch-invariant kernels, which ``sampling_seed`` needs."""

    dtype: str
    backend: str | None = None
    page: int = 1
    tree: bool = TREE
    graphs: bool = True
    overlap: bool = True
    seeded: bool = False
    plain: bool = False

    @property
    def name(self) -> str:
        parts = [self.backend or ("plain" if self.plain else "default"), self.dtype]
        if self.backend:
            parts += [f"page{self.page}", "tree" if self.tree else "chain"]
        extra = {"eager": not self.graphs, "no-overlap": not self.overlap, "seeded": self.seeded}
        return "-".join([*parts, *(word for word, said in extra.items() if said)])

    @property
    def reference(self) -> Setup:
        """The plain server that it is compared with."""
        return Setup(self.dtype, seeded=self.seeded, plain=True)

    @property
    def is_default(self) -> bool:
        """Whether it decodes as a user's would: such servers are timed."""
        return self.backend is None

    @property
    def flags(self) -> tuple[str, ...]:
        out = ["--dtype", self.dtype]
        if self.seeded:
            out += ["--enable-deterministic-inference"]
        if self.plain:
            # With overlap scheduling, plain decoding's penalties count each token a step late.
            return (*out, *(["--disable-overlap-schedule"] if self.dtype == "float32" else []))
        out += GLANCE
        if self.is_default:
            return tuple(out)
        out += ["--attention-backend", self.backend, "--page-size", str(self.page)]
        out += ["--context-length", str(SHORT_CONTEXT)]
        out += ["--max-running-requests", str(MOST_AT_A_TIME), "--decode-log-interval", "1"]
        out += [] if self.tree else ["--speculative-eagle-topk", "1"]
        out += [] if self.overlap else ["--disable-overlap-schedule"]
        graphs = ["--cuda-graph-bs-decode", *map(str, range(1, LARGEST_GRAPH + 1))]
        return (*out, *(graphs if self.graphs else ["--cuda-graph-backend-decode", "disabled"]))


@dataclass(frozen=True)
class Row:
    """One verdict. ``setup`` None: ``check`` gets its budget alone and needs no server, but maybe
    the backend ``needs``. ``quiet``: no server may start beside it."""

    what: str
    check: Callable[..., dict[str, Any]]
    setup: Setup | None = None
    budget_s: int = 30
    quiet: bool = False
    needs: str | None = None

    @property
    def name(self) -> str:
        return f"{self.setup.name if self.setup else 'kernels'}/{self.what}"

    @property
    def backend(self) -> str | None:
        return self.setup.backend if self.setup else self.needs


GREEDY, SLOTS = ("greedy", checks.greedy), ("slots", checks.slots)
GRAPHS = ("graphs", checks.in_graphs)
ABOVE = ("above the largest graph", checks.above_the_largest_graph)
EAGER = ("eager", checks.without_graphs)
CONTEXT = ("context limit", checks.end_of_the_context)
SPEEDS = [(f"speed, {n} at a time", partial(checks.speed, batch=n)) for n in (1, MOST_AT_A_TIME)]
EXACT = [
    *((kind, partial(checks.features, names=n)) for kind, n in checks.FEATURE_GROUPS.items()),
    ("log-probabilities", checks.logprobs),
]


def of(
    setup: Setup, *named: tuple[str, Callable], timed: bool = False, budget_s: int = 30
) -> list[Row]:
    """Rows of one server, lost slots last. ``timed``: its speed first, while no other starts. The
    first row pays for kernels that are compiled when they first run."""
    speeds = [Row(*each, setup, budget_s, quiet=True) for each in SPEEDS] if timed else []
    first, *others = *speeds, *(Row(*each, setup, budget_s) for each in (*named, SLOTS))
    return [replace(first, budget_s=2 * budget_s), *others]


def gpu_rows() -> list[Row]:
    """The most telling first: what a user gets, what must be exact, then the matrix."""
    exact = Setup("float32", "triton")
    seeded = Setup("float32", "triton", seeded=True)
    eager = Setup("float32", "triton", 16, CHAIN, graphs=False, overlap=False)
    # A run that is cut short has seen both page sizes, and trees and chains, of every backend.
    shapes = [(1, TREE), (16, CHAIN), (16, TREE), (1, CHAIN)]
    matrix = [Setup("bfloat16", backend, *shape) for shape, backend in product(shapes, BACKENDS)]
    return [
        Row(
            "FlashInfer's tree attention",
            alone.flashinfer_attention,
            budget_s=90,
            needs=BACKENDS[0],
        ),
        *of(Setup("bfloat16"), GREEDY, timed=True),
        *of(exact, GRAPHS, ABOVE, *EXACT, CONTEXT),
        *of(seeded, ("seeded sampling", checks.seeded)),
        *of(eager, EAGER, *EXACT, CONTEXT),
        *(row for setup in matrix for row in of(setup, GRAPHS, ABOVE, CONTEXT)),
        *of(Setup("bfloat16", "flashinfer", graphs=False, overlap=False), EAGER, CONTEXT),
        *of(Setup("bfloat16", "fa3", graphs=False), EAGER, CONTEXT),
        Row("every kernel against its twin", alone.twins, budget_s=120),
    ]


def cpu_rows() -> list[Row]:
    """The checks that mean something on a CPU: so the script is tried where there is no card."""
    chain = Setup("float32", "intel_amx", 16, CHAIN, graphs=False, overlap=False)
    return [
        *of(Setup("float32"), GREEDY, *EXACT, timed=True, budget_s=90),
        *of(chain, EAGER, CONTEXT, budget_s=90),
    ]


def rows_for(device: str) -> list[Row]:
    return gpu_rows() if device == "cuda" else cpu_rows()


def left_out(row: Row, device: str) -> str | None:
    """Why the row cannot be tried here, or None."""
    refusals = {each.name: each.refusal for each in backends(device)}
    return refusals[row.backend] if row.backend else None
