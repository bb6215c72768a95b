"""`sgl_kernel` for machines without an NVIDIA GPU: the ops of SGLang 0.5.23's CPU path.

Every op lives in the torch namespace `sgl_kernel` and has a twin in plain torch
(`sgl_kernel.twins`). If `SGL_KERNEL_CPU_TWINS=1` is set when this package is first imported, the
twins serve every op. Otherwise C++ serves the ops that it implements, and the twins the others.
"""

import os

import torch

from sgl_kernel import library, twins
from sgl_kernel.schemas import NAMESPACE, SCHEMAS, op_name

USES_TWINS = os.environ.get("SGL_KERNEL_CPU_TWINS", "0") == "1"

library.refuse_a_mix()
if not USES_TWINS:
    library.load()


def _register() -> torch.library.Library:
    fragment = torch.library.Library(NAMESPACE, "FRAGMENT")
    for schema in SCHEMAS:
        fragment.define(schema)
        name = op_name(schema)
        qualified = f"{NAMESPACE}::{name}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU"):
            continue
        # Without a tensor argument the dispatcher has no device to choose a kernel by.
        key = "CPU" if "Tensor" in schema else "CompositeExplicitAutograd"
        fragment.impl(name, getattr(twins, name), key)
    return fragment


_fragment = _register()  # a module variable, because deleting the Library unregisters its ops


def _op(name: str):
    return getattr(getattr(torch.ops, NAMESPACE), name).default


# SGLang imports these names from this package.
assign_req_to_token_pool_cpu = _op("assign_req_to_token_pool_cpu")
assign_extend_cache_locs_cpu = _op("assign_extend_cache_locs_cpu")
assign_draft_cache_locs_contiguous_cpu = _op("assign_draft_cache_locs_contiguous_cpu")
build_draft_decode_metadata_cpu = _op("build_draft_decode_metadata_cpu")
build_tree_kernel_efficient_cpu = _op("build_tree_kernel_efficient_cpu")
verify_tree_greedy_cpu = _op("verify_tree_greedy_cpu")
fill_bonus_tokens_cpu = _op("fill_bonus_tokens_cpu")
fill_accept_out_cache_loc_cpu = _op("fill_accept_out_cache_loc_cpu")
copy_all_layer_kv_cache_cpu = _op("copy_all_layer_kv_cache_cpu")
rotate_input_ids_cpu = _op("rotate_input_ids_cpu")
