"""SGLang's n-gram worker imports this name from here."""

from sgl_kernel import _op

reconstruct_indices_from_tree_mask = _op("reconstruct_indices_from_tree_mask")
