"""The window: the KV slots right after a request's prefix that a round reads and writes.

A request has at most ``context_len`` tokens. Under overlap scheduling SGLang reads the result of a
round after the next round has started, so that one more round may run for a request that has all
its tokens. The prefix of this last round may end a whole accepted run behind the last token that
SGLang keeps. ``Window.room`` cuts that run on the device. Therefore no prefix passes
``context_len``, for which the attention backends' buffers are made, and no window passes the end of
the request's row. SGLang keeps no token past ``context_len`` - 2, so the tokens that are cut would
be dropped anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func


class Window:
    """Slots of ``width`` tokens after each prefix; ``req_to_token [requests, row] int32``."""

    def __init__(self, width: int, context_len: int, req_to_token: torch.Tensor) -> None:
        row = req_to_token.shape[1]
        if row < context_len + width:
            raise RuntimeError(
                f"SGLang's request table has rows of {row} slots; GLANCE needs the context length "
                f"and one window, {context_len} + {width}"
            )
        self.width = width
        self.longest_prefix = context_len
        self.req_to_token = req_to_token

    def slots(self, req_pool_indices: torch.Tensor, prefix_lens: torch.Tensor) -> torch.Tensor:
        """KV slots ``[bs, width] int64``. The bound on the start holds anyway, see ``room``: the
        host's gather has none, and behind a row lies the next request's."""
        bs = len(prefix_lens)
        return assign_extend_cache_locs_uniform_func(
            req_pool_indices=req_pool_indices,
            req_to_token=self.req_to_token,
            start_offset=prefix_lens.clamp(max=self.longest_prefix),
            batch_size=bs,
            draft_token_num=self.width,
            device=prefix_lens.device,
        ).view(bs, -1)

    def room(self, prefix_lens: torch.Tensor) -> torch.Tensor:
        """Most drafts that this round may accept, ``[bs]``: the bonus token comes on top."""
        return (self.longest_prefix - prefix_lens - 1).clamp(min=0)


def widen(backend: Any, width: int) -> None:
    """Let the page tables that ``backend`` makes at capture reach one window past the context.

    FA3 reads the draft block and a chain's verify through them. Near the context limit these pass
    the context's end, and behind a table's row lies the next request's.
    """
    for part in (backend, *(getattr(backend, name, None) for name in _PARTS)):
        if hasattr(part, "max_num_pages"):
            part.max_context_len += width
            part.max_num_pages = -(-part.max_context_len // part.page_size)


_PARTS = ("prefill_backend", "decode_backend")  # of the host's hybrid backend
