"""A head and a vocabulary small enough for a loop over places, and one thread for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.head import Head
from sglang.glance.train.loss import Vocabulary

HIDDEN, TAPS, VOCAB, MASK, BLOCK = 16, 2, 40, 39, 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config() -> dict:
    return {
        "num_hidden_layers": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "dflash_config": {
            "target_layer_ids": list(range(TAPS)),
            "mask_token_id": MASK,
            "block_size": BLOCK,
        },
    }


@pytest.fixture
def head(config: dict) -> Head:
    head = Head(config)
    head.initialise(seed=1)
    return head


@pytest.fixture
def vocabulary() -> Vocabulary:
    generator = torch.Generator().manual_seed(2)
    return Vocabulary(*torch.randn(2, VOCAB, HIDDEN, generator=generator))


@pytest.fixture
def make_row() -> Callable[..., TappedRow]:
    def make(length: int, prompt_len: int, seed: int = 0) -> TappedRow:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, MASK, (length,), generator=generator)
        taps = torch.randn(length - 1, TAPS * HIDDEN, generator=generator).bfloat16()
        return TappedRow(ids, prompt_len, taps)

    return make
