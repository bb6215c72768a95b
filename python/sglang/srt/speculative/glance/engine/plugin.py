"""Registration: what every engine process runs once, before it parses arguments."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.speculative.glance.engine import adjustments, seams

logger = logging.getLogger(__name__)
NAME = "GLANCE"


def register() -> None:
    """Register GLANCE, or register its refusal, so that whoever asks for it reads why.

    SGLang logs and swallows what a plugin raises and would then answer "unknown algorithm".
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    problem = seams.host_problem()
    if problem is not None:
        logger.error("GLANCE is not available: %s", problem)
        SpeculativeAlgorithm.register(
            NAME, supports_overlap=True, validate_server_args=_refusal(problem)
        )(_no_worker)
        return
    from sglang.srt.speculative.glance.engine.algorithm import GlanceSpecAlgo

    adjustments.install()
    SpeculativeAlgorithm.register(
        NAME,
        supports_overlap=True,
        spec_class=GlanceSpecAlgo,
        validate_server_args=_check_surface,
    )(_worker)


def _refusal(problem: str) -> Any:
    def refuse(server_args: Any) -> None:
        raise RuntimeError(f"GLANCE is not available: {problem}")

    return refuse


def _no_worker(server_args: Any) -> type:
    raise RuntimeError("GLANCE was refused at registration")


def _check_surface(server_args: Any) -> None:
    seams.require()


def _worker(server_args: Any) -> type:
    from sglang.srt.speculative.glance.engine.worker import GlanceWorker

    return GlanceWorker
