"""A warning when hardly a draft is accepted, from lengths that SGLang copies to the host anyway."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
LEAST_ROUNDS = 200  # of a request, in one window
LEAST_TOKENS = 1.1  # a round


class AcceptWatch:
    """Warns once, after a minute of at least :data:`LEAST_ROUNDS` request-rounds with fewer than
    :data:`LEAST_TOKENS` tokens each on average. A minute starts with the first round after the
    minute before. Request-rounds that are limited to one token do not count."""

    def __init__(self, head: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.head, self.clock = head, clock
        self.started: float | None = None
        self.rounds = self.tokens = 0
        self.warned = False

    def exclude(self, num_plain: int) -> None:
        """Request-rounds of one token, whatever was drafted."""
        self.rounds -= num_plain
        self.tokens -= num_plain

    def note(self, num_correct_drafts: Sequence[int]) -> None:
        """Of each request in one finished round."""
        now = self.clock()
        if self.started is None:
            self.started = now
        self.rounds += len(num_correct_drafts)
        self.tokens += len(num_correct_drafts) + sum(num_correct_drafts)
        if now - self.started < WINDOW_S:
            return
        if self.rounds >= LEAST_ROUNDS and self.tokens < LEAST_TOKENS * self.rounds:
            self._warn()
        self.started, self.rounds, self.tokens = None, 0, 0

    def _warn(self) -> None:
        if not self.warned:
            logger.warning(
                "GLANCE: hardly a draft is accepted: %.2f tokens a round over %.0f s (%d "
                "request-rounds), slower than plain decoding, the output exact; check that the "
                "head %s was trained for this target and on requests like these",
                self.tokens / self.rounds,
                WINDOW_S,
                self.rounds,
                self.head,
            )
        self.warned = True
