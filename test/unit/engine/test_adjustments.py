"""A server of another algorithm, in whose environment GLANCE is installed, is SGLang's own."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.speculative.glance.engine.host import adjustments, stopping
from sglang.srt.speculative.glance.engine.host.adjustments import ADJUSTMENTS, CPU_PATH

ANSWER = object()
OTHER = SimpleNamespace(name="DFLASH")
SERVER = SimpleNamespace(speculative_algorithm="DFLASH", device="cpu")
MANAGER = SimpleNamespace(
    server_args=SERVER,
    model_config=SimpleNamespace(vocab_size=8),
    tp_worker=SimpleNamespace(model_runner=SimpleNamespace(spec_algorithm=OTHER)),
)
# What GLANCE would refuse, cut or change: hidden states, no prompt, log-probabilities out of range.
ASKED = SimpleNamespace(
    return_hidden_states=True,
    origin_input_ids_unpadded=[],
    top_logprobs_num=99,
    logprob_start_len=-9,
    token_ids_logprob=[99],
)
ARGUMENTS: dict[str, tuple] = {
    "dummy_input_width": (OTHER, None, 4, False),
    "refuse_request": (ASKED, True),
    "masks_are_kept": (ASKED, OTHER),
    "head_by_name_only": (MANAGER, "all"),
    "refuse_on_a_cpu": (MANAGER, ASKED),
    "refuse_at_the_door": (MANAGER, ASKED, []),
    "unreadable_is_refused": (MANAGER, ASKED),
    "cut_runs": (MANAGER, ASKED, SimpleNamespace(reqs=[ASKED], spec_algorithm=OTHER)),
    "settle_as_decided": (ASKED, 3),
    "keep_what_is_written": (
        MANAGER,
        SimpleNamespace(kv=SimpleNamespace(kv_committed_len=5)),
    ),
}
HOOKS = list(dict.fromkeys(row.hook for row in ADJUSTMENTS if row.hook not in CPU_PATH))


def answer(hook: Any, original: Any, arguments: tuple) -> Any:
    made = hook(original, *arguments)
    return asyncio.run(made) if inspect.isawaitable(made) else made


def test_every_hook_is_tried() -> None:
    assert {hook.__name__ for hook in HOOKS} == set(ARGUMENTS)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_another_algorithm_is_answered_by_sglang(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (adjustments, stopping):
        monkeypatch.setattr(module, "get_spec", lambda: SERVER)
    arguments, calls = ARGUMENTS[hook.__name__], []

    def original(*given: Any) -> Any:
        calls.append(given)
        return ANSWER

    async def awaited(*given: Any) -> Any:
        return original(*given)

    got = answer(hook, awaited if inspect.iscoroutinefunction(hook) else original, arguments)
    assert calls == [arguments]
    # Two of the hooks stand before functions that return nothing.
    assert got is (None if hook.__name__ in ("refuse_on_a_cpu", "refuse_at_the_door") else ANSWER)
