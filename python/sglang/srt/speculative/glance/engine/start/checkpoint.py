"""A head's weight files, checked before anything is loaded.

The host's loader skips tensors it does not know and leaves what is missing as it was allocated: a
head that is incomplete, or belongs to another config, would serve and draft noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from sglang.srt.speculative.glance.refusal import Refusal

# Names under which DFlash's own export keeps these two.
_ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}


def plain_name(key: str) -> str:
    """A checkpoint's tensor name without the prefixes that exports add."""
    name = key.removeprefix("model.")
    return _ALIASES.get(name, name)


def expected_shapes(head: Mapping[str, Any], num_taps: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a head's ``config.json`` asks for."""
    hidden, inner = head["hidden_size"], head["intermediate_size"]
    size = head.get("head_dim") or hidden // head["num_attention_heads"]
    q, kv = head["num_attention_heads"] * size, head["num_key_value_heads"] * size
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    biases = {"q_proj": (q,), "k_proj": (kv,), "v_proj": (kv,), "o_proj": (hidden,)}
    shapes = {"fc.weight": (hidden, num_taps * hidden), "hidden_norm.weight": (hidden,)}
    for number in range(head["num_hidden_layers"]):
        shapes |= {f"layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        if head.get("attention_bias"):
            shapes |= {
                f"layers.{number}.self_attn.{name}.bias": shape for name, shape in biases.items()
            }
    return shapes | {"norm.weight": (hidden,)}


def check_weights(folder: Path, head: Mapping[str, Any], num_taps: int) -> None:
    """Raise :class:`Refusal` that names the file or tensor which cannot be served.

    Folders without safetensors are left to the host's loader.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return
    wanted, found = expected_shapes(head, num_taps), set()
    for path in files:
        try:
            with safe_open(path, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118  (not a mapping)
                    name = plain_name(key)
                    if name in wanted:
                        _check_tensor(path, key, tensors, wanted[name])
                        found.add(name)
        except (SafetensorError, OSError) as error:
            raise Refusal(
                f"--speculative-draft-model-path: {path} cannot be read as safetensors ({error}); "
                "it is cut short or corrupt: copy or download it again"
            ) from error
    if missing := sorted(set(wanted) - found):
        raise Refusal(
            f"--speculative-draft-model-path: {folder} lacks {len(missing)} of {len(wanted)} "
            f"tensors, {missing[0]!r} first; expected all that its config.json describes"
        )


def _check_tensor(path: Path, key: str, tensors: Any, shape: tuple[int, ...]) -> None:
    got = tuple(tensors.get_slice(key).get_shape())
    if got != shape:
        raise Refusal(
            f"--speculative-draft-model-path: tensor {key!r} in {path} has shape {got}, expected "
            f"{shape} from its config.json; weights and config are of different heads"
        )
    tensor = tensors.get_tensor(key)
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise Refusal(
            f"--speculative-draft-model-path: tensor {key!r} in {path} holds NaN or infinite "
            "values; the head drafts nothing of use: train or export it again"
        )
