"""A head that SGLang built otherwise than the start-up line says ends the start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.speculative.glance.engine.start.started import check_built
from sglang.srt.speculative.glance.head_config import LayerAttention
from sglang.srt.speculative.glance.refusal import Unavailable

FULL, SLIDING = (-1, AttentionType.ENCODER_ONLY), (63, AttentionType.DECODER)


def built(*layers: tuple[int, AttentionType]) -> SimpleNamespace:
    attentions = [SimpleNamespace(sliding_window_size=w, attn_type=kind) for w, kind in layers]
    return SimpleNamespace(layers=[SimpleNamespace(self_attn=a) for a in attentions])


def test_as_expected() -> None:
    check_built(built(FULL, FULL), [LayerAttention(None, False)] * 2)
    check_built(built(SLIDING, FULL), [LayerAttention(64, True), LayerAttention(None, False)])


@pytest.mark.parametrize(
    "layers", [(FULL,), (FULL, SLIDING), (FULL, (-1, AttentionType.DECODER))], ids=str
)
def test_otherwise(layers: tuple) -> None:
    with pytest.raises(Unavailable, match="expected 2 layers, full attention, not causal"):
        check_built(built(*layers), [LayerAttention(None, False)] * 2)
