"""Registration: what every engine process runs once, before it parses arguments."""

from __future__ import annotations

import logging
import sys
from typing import Any

from sglang.srt.speculative.glance.engine.host import adjustments, seams
from sglang.srt.speculative.glance.refusal import Unavailable, print_alone

logger = logging.getLogger(__name__)
NAME = "GLANCE"


def register() -> None:
    """Register GLANCE, or a refusal under the same name that says why GLANCE cannot run here.

    SGLang logs what a plugin raises and goes on; a user would then read "unknown algorithm".
    """
    print_alone()
    problem = seams.host_problem()
    if problem is None:
        problem = _register()
    if problem is not None:
        logger.error("GLANCE is not available: %s", problem)
        _register_refusal(problem)


def _register() -> str | None:
    """Register the algorithm; returns why that is impossible on this host, or None."""
    try:
        from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
        from sglang.srt.speculative.glance.engine.algorithm import GlanceSpecAlgo
        from sglang.srt.speculative.glance.engine.start.args import before_the_models_are_read
        from sglang.srt.speculative.glance.engine.start.backends import prefer_flashinfer
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.speculative.spec_registry import get_spec

        if get_spec(NAME) is not None:
            return None  # a second call in this process
        adjustments.install()
        register_resolution_hook("handle_model_source_paths")(before_the_models_are_read)
        register_resolution_hook("handle_attention_backend_compatibility")(prefer_flashinfer)
        SpeculativeAlgorithm.register(
            NAME,
            supports_overlap=True,
            spec_class=GlanceSpecAlgo,
            validate_server_args=_check_surface,
        )(_worker)
    except (ImportError, AttributeError, TypeError) as error:
        return seams.explain(f"{type(error).__name__}: {error}")
    return None


def _register_refusal(problem: str) -> None:
    line = f"GLANCE is not available: {problem}"

    def refuse(server_args: Any) -> None:
        raise Unavailable(line)

    def no_worker(server_args: Any) -> type:
        raise Unavailable(line)

    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        SpeculativeAlgorithm.register(NAME, supports_overlap=True, validate_server_args=refuse)(
            no_worker
        )
    except (ImportError, AttributeError, TypeError):
        # This host's registry has another interface too, so the refusal cannot be registered. A
        # process whose command line asks for GLANCE ends here; every other one goes on.
        if any(NAME in argument.upper().split("=") for argument in sys.argv):
            raise SystemExit(line) from None


def _check_surface(server_args: Any) -> None:
    seams.require()


def _worker(server_args: Any) -> type:
    from sglang.srt.speculative.glance.engine.worker import GlanceWorker

    return GlanceWorker
