"""A target and a head, read from their folders: do they fit, are they whole, what do they take?"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from sglang.glance.check.doctor.findings import Row
from sglang.srt.speculative.glance.config import GlanceConfig
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights
from sglang.srt.speculative.glance.fingerprint import fingerprint
from sglang.srt.speculative.glance.head_config import describe_layers, parse_head, trained_target

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Pair(msgspec.Struct, frozen=True):
    """``num_weights``: of target and head; ``kv_values``: that one token's K and V are, in both."""

    rows: list[Row]
    num_weights: int
    kv_values: int


def read_pair(target: Path, head: Path) -> Pair:
    """Rows ``target``, ``head``, ``fit``; what is wrong with one is in its row."""
    target_row, target_weights, text = _folder("target", target)
    head_row, head_weights, about = _folder("head", head)
    rows = [target_row, head_row]
    if target_row.ok and head_row.ok:
        rows.append(_fit(target, head, about, text))
    kv_values = sum(_kv_values(each) for each in (text, about))
    return Pair(rows, target_weights + head_weights, kv_values)


def _folder(name: str, folder: Path) -> tuple[Row, int, dict[str, Any]]:
    """Row, number of weights, and the (text) config."""
    try:
        config = json.loads((folder / "config.json").read_text())
        count = sum(map(_num_weights, _files(folder)))
    except (OSError, ValueError, SafetensorError) as error:
        return Row(name, f"{folder}: {error}", False), 0, {}
    text = config.get("text_config", config)
    kind = (config.get("architectures") or ["no architecture"])[0]
    if ("DFlash" in kind) != (name == "head"):
        return Row(name, f"{kind}: expected a {name}", False), 0, {}
    sizes = f"{text.get('num_hidden_layers')} layers of {text.get('hidden_size')}"
    if name == "target":
        sizes += f", vocabulary {text.get('vocab_size')}"
        sizes += f", context {text.get('max_position_embeddings')}"
    return Row(name, f"{kind}, {sizes}; {count / 1e6:,.1f} M weights", True), count, text


def _files(folder: Path) -> list[Path]:
    """Weight files; all that an index names must be there."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
        found = [folder / name for name in sorted(names)]
    else:
        found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ValueError("no *.safetensors; expected the weights of a Hugging Face folder")
    return found


def _num_weights(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118


def _fit(target: Path, folder: Path, head: dict[str, Any], text: dict[str, Any]) -> Row:
    try:
        config: GlanceConfig = parse_head(head, text)
        check_weights(folder, head, len(config.taps))
    except KeyError as error:
        return Row("fit", f"the target's config.json names no {error}", False)
    except ValueError as error:
        return Row("fit", str(error), False)
    taps = ", ".join(map(str, config.taps))
    detail = f"block {config.block}, taps {taps}, mask id {config.mask_token_id}, "
    detail += f"{describe_layers(head)}; finite"
    trained = trained_target(head)
    if trained is not None and fingerprint(target) not in (None, trained):
        other = "the head was trained for another target: exact, and slow"
        return Row("fit", f"{detail}; {other}")
    return Row("fit", detail, True)


def _kv_values(text: dict[str, Any]) -> int:
    """Values that K and V of one token hold in all layers."""
    try:
        layers, heads = text["num_hidden_layers"], text["num_attention_heads"]
        size = text.get("head_dim") or text["hidden_size"] // heads
        return 2 * layers * text.get("num_key_value_heads", heads) * size
    except KeyError:
        return 0


def memory(pair: Pair, settled: dict[str, Any], free_bytes: int) -> Row:
    """Weights and K/V pool against what this machine has free."""
    dtype = settled.get("dtype")
    size = BYTES.get(dtype, 2 if settled.get("device") == "cuda" else 4)
    weights, free = pair.num_weights * size / 2**30, free_bytes / 2**30
    tokens = settled.get("max_total_tokens")
    if tokens is None:
        ok, pool = weights < free, "K/V: SGLang's share of the rest (--max-total-tokens bounds it)"
    else:
        need = tokens * pair.kv_values * size / 2**30
        ok, pool = weights + need < free, f"K/V of {tokens:,} tokens {need:.2f}"
    return Row("memory", f"GiB: weights {weights:.2f}, {pool}; {free:.1f} free", ok)


def window(settled: dict[str, Any]) -> Row:
    """Slots that a round writes, and the longest request, against the pool."""
    block, budget = (
        settled["speculative_dflash_block_size"],
        settled["speculative_num_draft_tokens"],
    )
    slots, pool = max(block, budget), settled["max_total_tokens"]
    shape = f"block {block}, budget {budget}, {settled['speculative_eagle_topk']} candidates"
    said = f"{shape}: {slots} slots a round and request"
    requests = settled["max_running_requests"] or 1
    if pool is not None and slots * requests >= pool:
        more = f"{requests} requests need {slots * requests} of {pool}: raise --max-total-tokens"
        return Row("window", f"{said}; {more}", False)
    context = settled["context_length"] or "the target's"
    return Row("window", f"{said}; context: {context}", True)


def free_memory(device: str) -> int:
    """Bytes that a server could take now."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    return min(available, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
