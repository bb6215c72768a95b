"""A paged KV cache with scattered slots, and calls of both attention ops on this cache."""

from dataclasses import dataclass

import torch
from sgl_kernel import twins

ops = torch.ops.sgl_kernel


@dataclass
class Paged:
    """B requests. Request b's queries are the last num_new[b] of its seq_lens[b] cached tokens."""

    seq_lens: list[int]
    num_new: list[int]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    value_size: int = 64
    dtype: torch.dtype = torch.float32
    window: int = 0
    cap: float = 0.0
    use_sinks: bool = False
    page_size: int = 1

    def __post_init__(self):
        pages = [-(-n // self.page_size) for n in self.seq_lens]
        order = torch.randperm(sum(pages) + 3)
        slots = order[:, None] * self.page_size + torch.arange(self.page_size)
        self.num_slots = slots.numel()
        self.req_to_token = torch.full(
            (len(pages) + 2, max(self.seq_lens, default=0) + 40), 2**30, dtype=torch.int32
        )
        self.rows = torch.randperm(len(pages) + 2)[: len(pages)]
        used = 0
        for row, length, count in zip(self.rows.tolist(), self.seq_lens, pages, strict=True):
            request_slots = slots[used : used + count].flatten()[:length]
            self.req_to_token[row, :length] = request_slots
            used += count
        self.k = torch.randn(self.num_slots, self.num_kv_heads, self.head_size).to(self.dtype)
        self.v = torch.randn(self.num_slots, self.num_kv_heads, self.value_size).to(self.dtype)
        self.q = torch.randn(sum(self.num_new), self.num_heads, self.head_size).to(self.dtype)
        self.sinks = torch.randn(self.num_heads) if self.use_sinks else None

    def slots(self, b: int) -> torch.Tensor:
        return self.req_to_token[self.rows[b], : self.seq_lens[b]].long()

    def extend(self, tree_mask=None, is_causal=True, twin=False) -> torch.Tensor:
        num_new = torch.tensor(self.num_new, dtype=torch.int32)
        out = self.q.new_empty(self.q.size(0), self.num_heads, self.value_size)
        fn = twins.extend_attention_cpu if twin else ops.extend_attention_cpu
        fn(
            self.q, None, None, out, self.k, self.v, 1.0, 1.0, self.req_to_token, self.rows,
            torch.tensor(self.seq_lens), num_new, (num_new.cumsum(0) - num_new).int(),
            max(self.num_new, default=0), self.head_size**-0.5, self.cap, False, self.window, None,
            self.sinks, tree_mask, is_causal,
        )  # fmt: skip
        return out

    def decode(self, q=None, slots=None, k=None, v=None, loc=None, twin=False) -> torch.Tensor:
        """One query per request; `slots`, one list per request, replaces the slots of the keys."""
        q = self.q if q is None else q
        table, rows, lens = self.req_to_token, self.rows, torch.tensor(self.seq_lens)
        if slots is not None:
            lens = torch.tensor([len(s) for s in slots])
            table = torch.zeros(len(slots), int(lens.max()), dtype=torch.int32)
            for row, row_slots in enumerate(slots):
                table[row, : len(row_slots)] = row_slots
            rows = torch.arange(len(slots))
        out = q.new_empty(q.size(0), self.num_heads, self.value_size)
        scratch = torch.empty(q.size(0), self.num_heads, 8, self.value_size + 1)
        fn = twins.decode_attention_cpu if twin else ops.decode_attention_cpu
        fn(
            q, self.k, self.v, 1.0, 1.0, out, k, v, loc, scratch, table, rows, lens,
            self.head_size**-0.5, self.cap, False, self.window, None, self.sinks,
        )  # fmt: skip
        return out


def random_tree(num_nodes: int) -> torch.Tensor:
    """bool [N, N]: row n marks node n and its ancestors; n's parent is a random node before n."""
    mask = torch.eye(num_nodes, dtype=torch.bool)
    for node in range(1, num_nodes):
        mask[node] |= mask[int(torch.randint(0, node, ()))]
    return mask
