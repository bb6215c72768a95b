"""``glance audit``: does GLANCE give the tokens that plain decoding gives?

The same greedy requests go to plain decoding, to plain decoding again, and to GLANCE. The second
pass of plain decoding is the control: where plain decoding does not repeat its own tokens, GLANCE
is not judged. Two running servers are given by URL; a model path starts them here, one after the
other.

In float32 the ids must be equal. In bfloat16 they need not be: a tree's rows are multiplied
together and may round otherwise than a single row, and where two tokens score almost the same the
other one may win. How far can that go? Plain takes token a, GLANCE takes b, plain's own logits put
a ahead by a gap g. GLANCE saw b ahead or level, so the two logits moved by at least g together
between the two computations, and one of them by g / 2. Logits are rounded to the dtype at the
end, so neighbours are one ulp apart: 2**-3 in bfloat16 for magnitudes from 16 to 32, where the best
logits of such models lie. Allowed are two ulps a logit, one from that last rounding and one from
the rounding of the hidden state before it: g of at most 4 ulps, 0.5 in bfloat16 and 0.0625 in
float16. A wrong mask, position or cache slot changes the input of the last layer as a whole, not
its last bit: a larger gap is a fault. ``--bound`` sets another for a model with larger logits.

Exit code: 0 no fault, 1 a fault or a control that strays just as far, 2 the audit could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from sglang.glance.cli.files import check_file, write_json
from sglang.glance.cli.options import DTYPES, Parser, add_models, settle_models
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.cli.terminal import messages, output, table
from sglang.glance.prompts.rows import Prompt, load_prompts
from sglang.glance.serving.arms import COLD, GLANCE, NAMES, PLAIN, arms
from sglang.glance.serving.client import (
    Endpoint,
    Reply,
    shipped_questions,
)
from sglang.glance.serving.server import log_folder, starting, wait_until_up

ULP_AT_16 = {"float32": 2.0**-19, "float16": 2.0**-6, "bfloat16": 2.0**-3}
NEAR_TIE_ULPS = 4
MOST_SHOWN = 20


class Divergence(msgspec.Struct, frozen=True):
    """The first token at which an answer leaves plain decoding's. ``margin``: what plain's best
    token had on its second there, in logits; ``gap``: what it had on the other answer's token;
    both None where plain had ended, the gap also where that token was not among plain's best."""

    request: int
    position: int
    plain_id: int | None
    other_id: int | None
    margin: float | None
    gap: float | None
    near_tie: bool


class Audit(msgspec.Struct, frozen=True):
    """What ``--json`` writes. ``smallest_margin``: over all compared tokens, which says how close
    to a tie the requests came."""

    plain: str
    glance: str
    model: str
    dtype: str
    bound: float
    requests: int
    compared_tokens: int
    divergences: list[Divergence]
    control_divergences: list[Divergence]
    largest_margin_at_divergence: float | None
    smallest_margin: float | None
    accept_length: float | None
    verdict: str

    @property
    def faults(self) -> list[Divergence]:
        return [each for each in self.divergences if not each.near_tie]


def near_tie_bound(dtype: str) -> float:
    """Largest gap that rounding explains; none is granted in float32."""
    if dtype not in ULP_AT_16:
        raise ValueError(f"dtype {dtype!r} has no stated bound: give one with --bound")
    return 0.0 if dtype == "float32" else NEAR_TIE_ULPS * ULP_AT_16[dtype]


def first_divergence(number: int, plain: Reply, other: Reply, bound: float) -> Divergence | None:
    shared = min(len(plain.ids), len(other.ids))
    at = next((i for i in range(shared) if plain.ids[i] != other.ids[i]), shared)
    if at == len(plain.ids) == len(other.ids):
        return None
    plain_id = plain.ids[at] if at < len(plain.ids) else None
    other_id = other.ids[at] if at < len(other.ids) else None
    best = plain.best[at] if at < len(plain.best) else {}
    margin = margin_of(best)
    gap = best[plain_id] - best[other_id] if plain_id in best and other_id in best else None
    near = bound > 0 and gap is not None and gap <= bound
    return Divergence(number, at, plain_id, other_id, margin, gap, near)


def margin_of(best: dict[int, float]) -> float | None:
    top = sorted(best.values(), reverse=True)
    return top[0] - top[1] if len(top) > 1 else None


def compare(
    plain: Sequence[Reply], other: Sequence[Reply], bound: float
) -> tuple[int, list[Divergence]]:
    """Tokens compared (a request's up to its first divergence, that one included), divergences."""
    found = [
        first_divergence(*row, bound) for row in zip(range(len(plain)), plain, other, strict=True)
    ]
    tokens = [
        len(reply.ids) if each is None else each.position + 1
        for reply, each in zip(plain, found, strict=True)
    ]
    return sum(tokens), [each for each in found if each is not None]


def judge(divergences: Sequence[Divergence], control: Sequence[Divergence]) -> str:
    if not divergences:
        return "identical"
    if all(each.near_tie for each in divergences):
        return "near ties only"
    if any(not each.near_tie for each in control):
        return "plain decoding does not repeat itself either: nothing can be concluded"
    return "faults"


def same_model(plain: Endpoint, glance: Endpoint) -> tuple[str, str]:
    """Model and dtype that both serve. Raises ``ValueError`` where they differ."""
    one, two = plain.description(), glance.description()
    for key, a in one.items():
        if key != "algorithm" and a != two[key]:
            raise ValueError(
                f"the servers differ in {key}: {plain.url} serves {a!r}, {glance.url} "
                f"{two[key]!r}; start both with the same model and dtype"
            )
    if one["algorithm"]:
        raise ValueError(
            f"{plain.url} runs --speculative-algorithm {one['algorithm']}: the plain server must "
            "run without one"
        )
    if not two["algorithm"]:
        raise ValueError(f"{glance.url} runs plain decoding: start it with GLANCE")
    return one["model"], one["dtype"]


def collect(
    endpoint: Endpoint,
    questions: Sequence[Prompt],
    options: argparse.Namespace,
    console: Console,
    name: str,
    margins: bool = False,
) -> list[Reply]:
    """Every question's greedy answer, ``--parallel`` at a time."""
    out = []
    ask = partial(endpoint.ask, max_tokens=options.max_tokens, margins=margins)
    with (
        bar(console, name, len(questions)) as advance,
        ThreadPoolExecutor(options.parallel) as pool,
    ):
        for reply in pool.map(ask, questions):
            out.append(reply)
            advance()
    return out


@contextlib.contextmanager
def server_of(
    options: argparse.Namespace, arm: str, logs: Path, console: Console
) -> Iterator[Endpoint]:
    """The server given by URL, or one started here."""
    given = options.plain_url if arm == PLAIN else options.glance_url
    if given:
        yield Endpoint(given)
        return
    flags = ["--dtype", options.dtype, *arms(options.head_path)[arm]]
    with starting(options.model_path, logs / f"{arm}.log", *flags, env=COLD) as server:
        with waiting(console, f"starting a server: {NAMES[arm]}"):
            wait_until_up(server)
        yield Endpoint(server.url)


def run(options: argparse.Namespace, console: Console) -> Audit:
    given = options.requests
    questions = load_prompts(given) if given else shipped_questions()
    with log_folder("audit") as logs:
        with server_of(options, PLAIN, logs, console) as plain:
            if options.glance_url:  # before an hour is spent on one of them
                same_model(plain, Endpoint(options.glance_url))
            about = plain.description()
            expected = collect(plain, questions, options, console, "plain", margins=True)
            control = collect(plain, questions, options, console, "plain again, the control")
        with server_of(options, GLANCE, logs, console) as glance:
            got = collect(glance, questions, options, console, "GLANCE")
    bound = near_tie_bound(about["dtype"]) if options.bound is None else options.bound
    tokens, divergences = compare(expected, got, bound)
    _, strayed = compare(expected, control, bound)
    at_divergence = [each.margin for each in divergences if each.margin is not None]
    margins = [m for reply in expected for m in map(margin_of, reply.best) if m is not None]
    rounds = sum(reply.rounds for reply in got)
    if not rounds and any(len(reply.ids) > 1 for reply in got):
        raise ValueError(f"{glance.url} verified no draft: it decoded plainly, nothing was audited")
    drafted = sum(len(reply.ids) - 1 for reply in got if reply.ids)
    return Audit(
        plain=plain.url,
        glance=glance.url,
        model=about["model"],
        dtype=about["dtype"],
        bound=bound,
        requests=len(questions),
        compared_tokens=tokens,
        divergences=divergences,
        control_divergences=strayed,
        largest_margin_at_divergence=max(at_divergence, default=None),
        smallest_margin=min(margins, default=None),
        accept_length=drafted / rounds if rounds else None,
        verdict=judge(divergences, strayed),
    )


def show(audit: Audit, console: Console) -> None:
    for name, rows in (("GLANCE", audit.divergences), ("control", audit.control_divergences)):
        if not rows:
            continue
        columns = ("request", "token", "plain id", "its id", "top-2 margin", "gap", "")
        found = table(f"{name}: first divergences", right=columns)
        for row in rows[:MOST_SHOWN]:
            cells = (row.request, row.position, row.plain_id, row.other_id)
            numbers = [f"{x:.4g}" if x is not None else "-" for x in (row.margin, row.gap)]
            said = "near tie" if row.near_tie else "FAULT"
            found.add_row(*("-" if x is None else str(x) for x in cells), *numbers, said)
        console.print(found, "")
    accept = "-" if audit.accept_length is None else f"{audit.accept_length:.2f}"
    console.print(
        f"{audit.model}, {audit.dtype}: {audit.requests} requests, {audit.compared_tokens} tokens "
        f"compared, {accept} tokens a verify round\n{len(audit.divergences)} divergences, "
        f"{len(audit.faults)} over the bound of {audit.bound:g}; control: "
        f"{len(audit.control_divergences)}\nverdict: {audit.verdict}",
        markup=False,
        soft_wrap=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser("audit", __doc__)
    parser.add_argument("--plain-url", help="a running server without speculation")
    parser.add_argument("--glance-url", help="a running server of the same model with GLANCE")
    add_models(parser)
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of servers started here"
    )
    parser.add_argument(
        "--requests", type=Path, help="JSONL file, or folder with prompts.jsonl (docs/requests.md)"
    )
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--parallel", type=int, default=1, help="requests at a time")
    parser.add_argument("--bound", type=float, help="largest gap of a near tie, in logits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if bool(options.plain_url) != bool(options.glance_url):
        parser.error("--plain-url and --glance-url go together")
    if options.parallel < 1 or options.max_tokens < 1:
        parser.error("--parallel and --max-tokens must be at least 1")
    if options.bound is not None and not 0 <= options.bound < math.inf:
        parser.error(f"--bound {options.bound}: expected a finite number of at least 0")
    settle_models(parser, options)
    check_file("--json", options.json)
    audit = run(options, messages())
    show(audit, output())
    if options.json:
        write_json(options.json, audit)
    return 0 if audit.verdict in ("identical", "near ties only") else 1
