"""What a GLANCE server is asked beside a plain one. A check returns its numbers, or raises
:class:`Wrong` or ``AssertionError``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from builders.features import FEATURES, Expected, verdict
from builders.floors import ACCEPT_LEN_READ, ACCEPT_LEN_READ_BY_CHAIN
from builders.prompts import TEXTS, chat
from harness import (
    Answer,
    Ask,
    Plain,
    Server,
    ask_together,
    assert_identical,
    assert_no_slot_lost,
)
from logprobs import EVERYTHING, INPUT, OUTPUT, TOLERANCE, flat
from sglang.glance.check.audit import compare, near_tie_bound
from sglang.glance.measure import figures
from sglang.glance.measure.bench import Arm, measure, warm_up
from sglang.glance.serving.arms import GLANCE, PLAIN
from sglang.glance.serving.client import Reply

Numbers = dict[str, Any]
LARGEST_GRAPH, MOST_AT_A_TIME = 4, 8  # requests: in a captured round, and in any
SHORT_CONTEXT = 256  # tokens; a picture with its question takes about 110
MARGINS = {"return_logprob": True, "top_logprobs_num": 5}
# On a GPU a row's matrix products are summed in another order for each size of the batch.
LOGPROB_TOLERANCE = {"cpu": TOLERANCE, "cuda": 1e-3}
STEP = re.compile(r"Decode batch.*?#running-req: (\d+),.*? graph: (True|False)")


class Wrong(Exception):
    def __init__(self, reason: str, numbers: Numbers) -> None:
        super().__init__(reason)
        self.numbers = numbers


class Asked(NamedTuple):
    """``ours``: the server under test, on ``device``, with trees or, where not ``tree``, chains.
    ``plain``, ``expected``: plain decoding of the same dtype. ``pictures``: requests about them."""

    ours: Server
    plain: Plain
    expected: Expected
    dtype: str
    device: str
    tree: bool
    pictures: list[dict]

    @property
    def requests(self) -> list[dict]:
        return [*self.pictures, *({"text": chat(text)} for text in TEXTS)]


def tokens_a_round(answers: Sequence[Answer]) -> float | None:
    rounds = sum(answer.rounds for answer in answers)
    return round(sum(len(a.ids) - 1 for a in answers) / rounds, 3) if rounds else None


def reply(answer: Answer) -> Reply:
    rows = answer.meta.get("output_top_logprobs") or []
    return Reply(answer.ids, best=[{token: value for value, token, *_ in row} for row in rows])


def judged(asked: Asked, asks: Sequence[Ask], got: Sequence[Answer]) -> Numbers:
    """Greedy answers against plain decoding's. In float32 all must be identical; in bfloat16 an
    answer may depart where plain decoding's own tokens are nearly tied, as the audit counts it."""
    exact = asked.dtype == "float32"
    asked_plain = [(q if exact else {**q, "extra": MARGINS}, given) for q, given in asks]
    expected = asked.plain.answers_to(asked_plain)
    replies = [[reply(answer) for answer in answers] for answers in (expected, got)]
    tokens, found = compare(*replies, near_tie_bound(asked.dtype))
    numbers = {
        "requests": len(got),
        "tokens": tokens,
        "divergences": [msgspec.to_builtins(each) for each in found],
        "tokens_a_round": tokens_a_round(got),
    }
    faults = [each for each in found if not each.near_tie]
    if faults:
        first = faults[0]
        raise Wrong(
            f"{len(faults)} of {len(got)} answers depart from plain decoding's; request "
            f"{first.request} at token {first.position}: margin {first.margin}, gap {first.gap}",
            numbers,
        )
    if not numbers["tokens_a_round"]:
        raise Wrong("no draft was verified: the server decoded plainly", numbers)
    if exact:
        assert_identical(got, expected)
    return numbers


def answered(asked: Asked, at_a_time: int) -> Numbers:
    """All requests. The head must draft as far as it does on a CPU: a fault in its own pass costs
    no token of the output."""
    got = asked.ours.generate_all(asked.requests, at_a_time)
    numbers = judged(asked, [(request, {}) for request in asked.requests], got)
    pairs = zip(got, asked.requests, strict=True)
    read = tokens_a_round([a for a, q in pairs if q.get("task") in ("document", "chart")])
    numbers["tokens_a_round_read"] = read
    floor = ACCEPT_LEN_READ if asked.tree else ACCEPT_LEN_READ_BY_CHAIN
    if read < floor:
        raise Wrong(f"{read} tokens a round on documents and charts, not {floor}", numbers)
    return numbers


def batches(asked: Asked, at_a_time: int) -> tuple[Numbers, list[int], list[int]]:
    """Also the batch sizes of the rounds that replayed a captured graph, and of those that did
    not."""
    before = asked.ours.log.stat().st_size
    numbers = answered(asked, at_a_time)
    with asked.ours.log.open("rb") as log:
        log.seek(before)
        steps = STEP.findall(log.read().decode(errors="replace"))
    replayed, eager = (
        sorted({int(size) for size, ran in steps if ran == kind}) for kind in ("True", "False")
    )
    return numbers | {"graph_batches": replayed, "eager_batches": eager}, replayed, eager


def greedy(asked: Asked) -> Numbers:
    """One at a time."""
    return answered(asked, 1)


def in_graphs(asked: Asked) -> Numbers:
    """Batches that captured graphs hold."""
    numbers, replayed, eager = batches(asked, LARGEST_GRAPH)
    if eager or not replayed:
        raise Wrong("not every round replayed a captured graph", numbers)
    return numbers


def above_the_largest_graph(asked: Asked) -> Numbers:
    numbers, replayed, eager = batches(asked, MOST_AT_A_TIME)
    if max(replayed, default=0) > LARGEST_GRAPH or max(eager, default=0) <= LARGEST_GRAPH:
        raise Wrong("no round was above the largest graph, or one above it replayed it", numbers)
    return numbers


def without_graphs(asked: Asked) -> Numbers:
    """A server that captured none."""
    numbers, replayed, eager = batches(asked, MOST_AT_A_TIME)
    if replayed or not eager:
        raise Wrong("a round replayed a captured graph", numbers)
    return numbers


def end_of_the_context(asked: Asked) -> Numbers:
    """Answers that loop up to the end of ``SHORT_CONTEXT``, where a window is wider than what is
    left, and others beside them that end before: every slot must stay its request's."""
    asks: list[Ask] = []
    for picture in asked.pictures[::2]:
        taken = asked.plain.answer(picture, max_new_tokens=1).meta["prompt_tokens"]
        # The host keeps two tokens free.
        asks.append((picture, {"ignore_eos": True, "max_new_tokens": SHORT_CONTEXT - 2 - taken}))
    asks += [(picture, {}) for picture in asked.pictures[1::4]]
    return judged(asked, asks, ask_together(asked.ours, asks))


def features(asked: Asked, names: Sequence[str]) -> Numbers:
    """Rows of the table in docs/losslessness.md, in a batch with greedy requests."""
    judge = partial(verdict, asked.ours, asked.expected, "mixed batch")
    numbers = {name: judge(FEATURES[name], asked.pictures) for name in names}
    if wrong := [name for name, got in numbers.items() if got != PLAINLY.get(name, "exact")]:
        raise Wrong(f"not as documented: {', '.join(wrong)}", numbers)
    return numbers


PLAINLY = {"grammar and ignore_eos": "plainly"}
FEATURE_GROUPS = {
    "penalties": (
        *("repetition penalty", "presence penalty", "frequency penalty", "min_new_tokens"),
        "logit bias",
    ),
    "grammar": ("JSON schema", "regex", "EBNF", *PLAINLY),
    "sampling": ("temperature, top-p, top-k, min-p", "n = 2"),
    "endings": ("end of text", "stop string", "stop token", "max_new_tokens", "streaming"),
}


def logprobs(asked: Asked) -> Numbers:
    """Of prompt and output, one at a time and together: plain decoding's within rounding."""
    requests = [{**request, "extra": EVERYTHING} for request in asked.requests[-4::3]]
    requests += [{**request, "extra": EVERYTHING} for request in asked.pictures[:2]]
    expected = asked.plain.answers(requests, max_new_tokens=24)
    most = 0.0
    for parallel in (1, len(requests)):
        got = asked.ours.generate_all(requests, parallel, max_new_tokens=24)
        assert_identical(got, expected)
        for (ours, plain), key in product(zip(got, expected, strict=True), (*OUTPUT, *INPUT)):
            pairs = list(zip(*(flat(answer.meta[key]) for answer in (ours, plain)), strict=True))
            # Of two that are nearly tied either may be listed first: the values say enough.
            assert [a is None for (a, _), _ in pairs] == [b is None for _, (b, _) in pairs], key
            most = max([most, *(abs(a - b) for (a, _), (b, _) in pairs if a is not None)])
    numbers = {"requests": len(requests), "largest_difference": most}
    if most > LOGPROB_TOLERANCE[asked.device]:
        raise Wrong(f"log-probabilities differ by up to {most}", numbers)
    return numbers


def seeded(asked: Asked) -> Numbers:
    """``sampling_seed``: plain decoding's tokens, whatever is in the batch."""
    hot = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 48, "ignore_eos": True}
    requests = [*asked.pictures[:4], *asked.requests[-4:]]
    asks = [(request, {**hot, "sampling_seed": seed}) for seed in (1, 2, 3) for request in requests]
    expected = asked.plain.answers_to(asks)
    got = ask_together(asked.ours, asks)
    distinct = len({tuple(answer.ids) for answer in got})
    numbers = {"requests": len(asks), "distinct": distinct, "tokens_a_round": tokens_a_round(got)}
    if distinct <= len(requests):
        raise Wrong("three seeds gave no more answers than one: nothing was sampled", numbers)
    assert_identical(got, expected)
    return numbers


def slots(asked: Asked) -> Numbers:
    """None is lost."""
    assert_no_slot_lost(asked.ours)
    return {}


def speed(asked: Asked, batch: int, repeats: int = 2) -> Numbers:
    """Plain decoding's time over GLANCE's, from empty caches, the two in turns."""
    servers = {PLAIN: asked.plain.server, GLANCE: asked.ours}
    # A round log that nobody writes: it would make each round slower.
    arms = [Arm(name, server, Path("no-rounds")) for name, server in servers.items()]
    for arm in arms:
        warm_up(arm, asked.pictures, batch)
    rows = list(measure(arms, asked.pictures, asked.dtype, batch, repeats))
    plain, ours = (figures.select(rows, arm=name) for name in servers)
    by_prompt = figures.prompts(ours), figures.prompts(plain)
    same, number = figures.identical(ours, plain)
    numbers: Numbers = {"batch": batch, "answers": number, "identical": same}
    numbers["tokens_a_round"] = round(figures.accept_length(ours), 3)
    for name, rate in (
        ("decode_only", figures.decode_tok_s),
        ("end_to_end", figures.end_to_end_tok_s),
    ):
        ratio = figures.speedup(rate, *by_prompt)
        numbers[name] = {
            "ratio": round(ratio.value, 3),
            "interval": [round(ratio.low, 3), round(ratio.high, 3)],
            "glance_tok_s": round(rate(by_prompt[0].values()), 1),
            "plain_tok_s": round(rate(by_prompt[1].values()), 1),
        }
    if asked.dtype == "float32" and same < number:
        raise Wrong(f"{number - same} of {number} timed answers depart", numbers)
    return numbers
