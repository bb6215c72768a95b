"""Options against each other, against the target and against an initial head."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import InputError, Prompt, load_numbered, load_prompts
from sglang.glance.train import eagle3
from sglang.glance.train.data import Row
from sglang.glance.train.objective import default_taps, head_config, mask_token
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights
from sglang.srt.speculative.glance.fingerprint import fingerprint
from sglang.srt.speculative.glance.head_config import HeadConfigError, parse_head

DEFAULT_BLOCK, DEFAULT_LAYERS, DEFAULT_CHAIN = 16, 5, 9
DEFAULT_CONTEXT = 4096  # tokens, where the target does not end earlier


class Job(msgspec.Struct, frozen=True):
    """What the options come to. ``config``: the head's. ``prompts``: numbered lines of ``--data``;
    ``rows``: those of ``--rows``; one of them is empty."""

    config: dict[str, Any]
    prompts: list[tuple[int, Prompt]]
    rows: list[Row]
    device: str
    dtype: str


def check(options: argparse.Namespace, config: Any, prompter: Prompter) -> Job:
    """``config``: the target's. Settles what ``options`` leave to the target. Raises
    :class:`InputError` before anything is written."""
    import torch

    _check_numbers(options)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees none here; install its driver, or use cpu")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("the loss curve needs matplotlib: pip install 'sglang-glance[train]'")
    text = config.get_text_config()
    if options.context_length is None:
        options.context_length = min(DEFAULT_CONTEXT, text.max_position_embeddings)
    if options.context_length > text.max_position_embeddings:
        raise InputError(
            f"--context-length: got {options.context_length}, the target ends at "
            f"{text.max_position_embeddings}"
        )
    head = _head(options, text, prompter.tokenizer)
    prompts, rows = [], []
    if options.rows:
        rows = check_rows(options.rows, options, prompter, text.vocab_size)
    else:
        prompts = _check_prompts(options, prompter)
    check_held_out(options, len(prompts) + len(rows))
    dtype = options.dtype or ("bfloat16" if device == "cuda" else "float32")
    return Job(head, prompts, rows, device, dtype)


def check_held_out(options: argparse.Namespace, num_rows: int) -> None:
    if num_rows <= options.held_out:
        raise InputError(
            f"--held-out {options.held_out} leaves none of {num_rows} rows to train on"
        )


def check_rows(
    path: Path, options: argparse.Namespace, prompter: Prompter, vocab_size: int
) -> list[Row]:
    """Rows with an answer to learn from: two tokens or more, up to the first that stands for a
    picture, of which the target would want to see one."""

    def check_row(row: Row) -> None:
        num_prompt = prompter.count(row)
        if num_prompt != row.num_prompt:
            raise ValueError(
                f"num_prompt is {row.num_prompt}, the target's processor counts {num_prompt} "
                "tokens; the rows are of another target"
            )
        if bad := [i for i in row.ids if not 0 <= i < vocab_size]:
            raise ValueError(f"token {bad[0]} of ids is outside the vocabulary of {vocab_size}")
        if num_prompt + len(row.ids) > options.context_length:
            raise ValueError(
                f"{num_prompt} prompt tokens and {len(row.ids)} of the answer exceed "
                f"--context-length {options.context_length}"
            )

    rows = [_text_alone(row, prompter.vision_ids) for row in load_prompts(path, check_row, Row)]
    kept = [row for row in rows if len(row.ids) > 1]
    if not kept:
        raise InputError(f"{path}: every answer has fewer than two tokens; nothing can be learnt")
    return kept


def _text_alone(row: Row, vision_ids: Collection[int]) -> Row:
    """``row`` with its answer cut before the first token that stands for a picture or a video: a
    target that is hardly trained writes such tokens."""
    stops = (at for at, token in enumerate(row.ids) if token in vision_ids)
    end = next(stops, len(row.ids))
    return row if end == len(row.ids) else msgspec.structs.replace(row, ids=row.ids[:end])


def _check_prompts(options: argparse.Namespace, prompter: Prompter) -> list[tuple[int, Prompt]]:
    def check_prompt(prompt: Prompt) -> None:
        num_prompt = prompter.count(prompt)
        if num_prompt + options.max_new_tokens > options.context_length:
            raise ValueError(
                f"{num_prompt} prompt tokens and --max-new-tokens {options.max_new_tokens} exceed "
                f"--context-length {options.context_length}; raise that or leave the row out"
            )

    return load_numbered(options.data, check_prompt)


def _check_numbers(options: argparse.Namespace) -> None:
    if (options.data is None) == (options.rows is None):
        raise InputError("give --data (prompts to answer) or --rows (finished rows), one of them")
    micro = options.micro_rows or options.batch_rows
    wanted = [
        ("--block", options.block or DEFAULT_BLOCK, 2, None),
        ("--layers", options.layers or DEFAULT_LAYERS, 1, None),
        ("--batch-rows", options.batch_rows, 1, None),
        ("--micro-rows", micro, 1, options.batch_rows),
        ("--anchors", options.anchors, 1, None),
        ("--max-new-tokens", options.max_new_tokens, 2, None),
        ("--held-out", options.held_out, 1, None),
        ("--save-every", options.save_every, 1, None),
        ("--past-block", options.past_block, 0, 1),
    ]
    for name, got, low, high in wanted:
        if got < low or (high is not None and got > high):
            expected = f"at least {low}" if high is None else f"{low} to {high}"
            raise InputError(f"{name}: got {got}, expected {expected}")
    for name in ("epochs", "lr", "decay"):
        got = getattr(options, name)
        if not 0 < got < float("inf"):
            raise InputError(f"--{name}: got {got}, expected a number above 0")


def _head(options: argparse.Namespace, text: Any, tokenizer: Any) -> dict[str, Any]:
    """The config of the head to be trained."""
    if options.algorithm == "EAGLE3":
        return _eagle3(options, text)
    head = _initial(options, text) if options.init else _new(options, text, tokenizer)
    _parse(head, text, "--init" if options.init else "--taps")
    trained_for = fingerprint(options.model_path)
    return head | {"glance_config": {"target_fingerprint": trained_for} if trained_for else {}}


def _eagle3(options: argparse.Namespace, text: Any) -> dict[str, Any]:
    if given := [f"--{name}" for name in ("init", "layers") if getattr(options, name)]:
        raise InputError(f"{', '.join(given)}: an EAGLE3 head starts anew and has one layer")
    most = text.num_hidden_layers - 2
    if most < eagle3.NUM_TAPS - 1:
        raise InputError(
            f"--algorithm EAGLE3: the target has {text.num_hidden_layers} layers, expected at "
            "least 4"
        )
    taps = options.taps or eagle3.default_taps(text.num_hidden_layers)
    right = len(set(taps)) == eagle3.NUM_TAPS and all(0 <= tap <= most for tap in taps)
    if not right or taps != sorted(taps):
        raise InputError(f"--taps: got {taps}, expected three ascending layers of 0 to {most}")
    return eagle3.head_config(text, taps, (options.block or DEFAULT_CHAIN) - 1)


def _new(options: argparse.Namespace, text: Any, tokenizer: Any) -> dict[str, Any]:
    mask = mask_token(tokenizer, text.vocab_size)
    if mask is None:
        raise InputError(
            f"the tokenizer fills the target's whole vocabulary of {text.vocab_size} and has no "
            "<|mask|>: no token is left for masks; start from a head with --init"
        )
    taps = options.taps or default_taps(text.num_hidden_layers)
    block, layers = options.block or DEFAULT_BLOCK, options.layers or DEFAULT_LAYERS
    return head_config(text, taps, block, layers, mask)


def _initial(options: argparse.Namespace, text: Any) -> dict[str, Any]:
    """The head's own config, with its sizes where this trainer and SGLang read them."""
    path = options.init / "config.json"
    try:
        head = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"--init: {path} cannot be read: {error}") from error
    given = [f"--{name}" for name in ("block", "layers", "taps") if getattr(options, name)]
    if given:
        raise InputError(f"{', '.join(given)}: the head of --init has its own; leave it out")
    config = _parse(head, text, "--init")
    rope = head.get("rope_parameters") or {}
    theta = head.get("rope_theta") or rope.get("rope_theta")
    scaling = head.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
    scaling = {k: v for k, v in scaling.items() if v not in (None, "default")}
    refused = {
        "attention_bias": head.get("attention_bias"),
        "quantization_config": head.get("quantization_config"),
        "rope_scaling": scaling,
        "rope_theta (none)": theta is None,
        "hidden_act": head.get("hidden_act", "silu") != "silu",
    }
    if bad := [name for name, got in refused.items() if got]:
        raise InputError(f"--init: {path} sets {', '.join(bad)}, which is not trained here")
    try:
        check_weights(options.init, head, len(config.taps))
    except ValueError as error:
        _, _, rest = str(error).partition(": ")
        raise InputError(f"--init: {rest}") from error
    dflash = {
        "target_layer_ids": list(config.taps),
        "block_size": config.block,
        "mask_token_id": config.mask_token_id,
        "num_target_layers": text.num_hidden_layers,
    }
    return head | {
        "dflash_config": dict(head["dflash_config"]) | dflash,
        "block_size": config.block,
        "head_dim": head.get("head_dim") or head["hidden_size"] // head["num_attention_heads"],
        "rope_theta": float(theta),
    }


def _parse(head: dict[str, Any], text: Any, option: str) -> Any:
    sizes = {
        name: getattr(text, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    }
    try:
        return parse_head(head, sizes)
    except HeadConfigError as error:
        raise InputError(f"{option}: {error}") from error
