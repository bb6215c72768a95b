"""Which runners an update of weights goes to, and what follows the head's."""

from __future__ import annotations

import pytest
from sglang.srt.speculative.glance.engine.host.weights import HeadUpdater, head_by_name_only


@pytest.mark.parametrize(
    ("selector", "runners"), [((), "target"), (("all",), "target"), (("draft",), "draft")]
)
def test_all_means_the_target(selector: tuple[str, ...], runners: str) -> None:
    assert head_by_name_only(lambda manager, got: got, None, *selector) == runners


class Updater:
    device = "cpu"

    def update_weights_from_tensor(self, named_tensors: list, fails: bool = False) -> str:
        if fails:
            raise ValueError("half of it is loaded")
        return f"{len(named_tensors)} loaded"

    def begin_weight_update(self) -> None:
        pass


def test_copies_follow_each_load_also_one_that_fails() -> None:
    calls: list[int] = []
    updater = HeadUpdater(Updater(), lambda: calls.append(1))
    updater.begin_weight_update()
    assert (updater.device, calls) == ("cpu", [])
    assert updater.update_weights_from_tensor(named_tensors=[1, 2]) == "2 loaded"
    assert len(calls) == 1
    with pytest.raises(ValueError, match="half of it"):
        updater.update_weights_from_tensor(named_tensors=[], fails=True)
    assert len(calls) == 2
