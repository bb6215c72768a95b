"""What SGLang's attention backends read in a tree verify, written as slow loops.

`prefix_lens`, `slots_of` (one list of KV slots a request: prefix first, then N tree slots) and
`parents` (one list a request) are plain Python.
"""

from __future__ import annotations

import tree_reference


def tree_rows(parents):
    """[N][N] of bool: the row may attend to the column."""
    seen = [tree_reference.ancestors_or_self(parents, node) for node in range(len(parents))]
    return [[column in row for column in range(len(parents))] for row in seen]


def qlen(parents_of):
    return [cell for parents in parents_of for row in tree_rows(parents) for cell in row]


def full(parents_of, prefix_lens):
    cells = []
    for parents, prefix_len in zip(parents_of, prefix_lens):
        for row in tree_rows(parents):
            cells += [True] * prefix_len + row
    return cells


def flashinfer_arguments(parents_of, prefix_lens, slots_of):
    """Keys are prefix and tree together, and the mask covers all of them."""
    qo_indptr, kv_indptr, kv_indices = [0], [0], []
    for parents, prefix_len, slots in zip(parents_of, prefix_lens, slots_of):
        qo_indptr.append(qo_indptr[-1] + len(parents))
        kv_indptr.append(kv_indptr[-1] + prefix_len + len(parents))
        kv_indices += slots
    return qo_indptr, kv_indptr, kv_indices, full(parents_of, prefix_lens)


def triton_arguments(parents_of, prefix_lens, slots_of):
    """Indexed keys are the prefix alone; a request's mask starts at mask_indptr and has the
    prefix columns, which are skipped, in every row."""
    qo_indptr, kv_indptr, kv_indices, mask_indptr = [0], [0], [], [0]
    for parents, prefix_len, slots in zip(parents_of, prefix_lens, slots_of):
        num_nodes = len(parents)
        qo_indptr.append(qo_indptr[-1] + num_nodes)
        kv_indptr.append(kv_indptr[-1] + prefix_len)
        kv_indices += slots[:prefix_len]
        mask_indptr.append(mask_indptr[-1] + num_nodes * (prefix_len + num_nodes))
    return qo_indptr, kv_indptr, kv_indices, mask_indptr, full(parents_of, prefix_lens)


def visible_slots(parents, prefix_len, slots):
    """For every node, the KV slots it may attend to: its own path, as plain decoding would."""
    return [
        slots[:prefix_len]
        + sorted(slots[prefix_len + a] for a in tree_reference.ancestors_or_self(parents, node))
        for node in range(len(parents))
    ]
