"""The name that SGLang's n-gram worker imports from `sgl_kernel.speculative`."""

from sgl_kernel import _op

reconstruct_indices_from_tree_mask = _op("reconstruct_indices_from_tree_mask")
