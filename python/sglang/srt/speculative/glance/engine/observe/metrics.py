"""What GLANCE adds to the server's ``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.runtime_context import get_observability, get_serving

PLAIN_REASONS = ("custom_logit_processor", "grammar_ignoring_eos")


class PlainRounds:
    """``sglang:glance_plain_rounds_total`` by ``reason``: rounds in which a request was given one
    token only, counted for each such request. A reason shows 0 from the start."""

    def __init__(self, counter: Any, labels: dict[str, str]) -> None:
        self.by_reason = {
            reason: counter.labels(**labels, reason=reason) for reason in PLAIN_REASONS
        }

    @classmethod
    def from_host(cls) -> PlainRounds | NoMetrics:
        if not get_observability().enable_metrics:
            return NoMetrics()
        # SGLang sets the folder that processes share their counts in; read at import.
        from prometheus_client import Counter

        labels = {"model_name": get_serving().served_model_name}
        labels |= get_observability().extra_metric_labels or {}
        counter = Counter(
            name="sglang:glance_plain_rounds_total",
            documentation="Rounds in which a request was given one token only, by reason.",
            labelnames=[*labels, "reason"],
        )
        return cls(counter, labels)

    def count(self, reasons: Sequence[str]) -> None:
        for reason in reasons:
            self.by_reason[reason].inc()


class NoMetrics:
    """The server runs without ``--enable-metrics``."""

    def count(self, reasons: Sequence[str]) -> None:
        pass
