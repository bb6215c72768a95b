"""The two checkpoints of a server, target and head: found, read and checked against each other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sglang.srt.speculative.glance.config import GlanceConfig, resolve
from sglang.srt.speculative.glance.head_config import parse_head
from sglang.srt.speculative.glance.refusal import Refusal, refuse

SUPPORTED_ARCHITECTURES = ("Qwen3VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
TARGET, HEAD = "--model-path", "--speculative-draft-model-path"
# What a hub takes for a name; anything else that does not exist is a mistyped path.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")


class Models(NamedTuple):
    """``head``: its ``config.json``. ``target``: its config as transformers reads it."""

    head: dict[str, Any]
    target: Any

    @property
    def text(self) -> Any:
        return self.target.get_text_config()


def read_models(args: Any) -> Models:
    """Raises :class:`Refusal`, one line, where either is missing, unreadable or of another kind."""
    target, head = args.model_path, args.speculative_draft_model_path
    target_config, head_config = _local_config(TARGET, target), _local_config(HEAD, head)
    if target_config is not None and _is_head(target_config):
        if head_config is not None and _is_target(head_config):
            raise Refusal(
                f"head and target are swapped: {TARGET} {target} is a head, {HEAD} {head} a model; "
                "exchange the two paths"
            )
        raise Refusal(f"{TARGET}: {target} is a draft head; expected the model that it drafts for")
    overrides = json.loads(args.json_model_override_args)
    read = _hub_config(TARGET, target, args, args.revision, model_override_args=overrides)
    if (read.architectures or [""])[0] not in SUPPORTED_ARCHITECTURES:
        refuse(TARGET, read.architectures, f"one of {SUPPORTED_ARCHITECTURES}")
    if head_config is None:
        head_config = _hub_config(HEAD, head, args, args.speculative_draft_model_revision).to_dict()
    if _is_target(head_config):
        raise Refusal(
            f"{HEAD}: {head} holds a full model ({head_config['architectures'][0]}); expected a "
            "head in DFlash's checkpoint format"
        )
    if (Path(head) / "mask_embedding.pt").exists():
        # It would be merged into the target's embedding, and the target's output would change.
        raise Refusal(
            f"{HEAD}: {head} holds mask_embedding.pt, which rewrites a row of the target's "
            "embedding; GLANCE serves heads that leave the target as it is"
        )
    return Models(head_config, read)


def _local_config(flag: str, path: str) -> dict[str, Any] | None:
    """``config.json`` of a folder; None where ``path`` is a name on a hub, or no folder of ours."""
    folder = Path(path)
    if folder.is_dir():
        return _read_config(flag, folder)
    if folder.is_file():
        if folder.suffix == ".gguf" and flag == TARGET:
            return None
        raise Refusal(f"{flag}: {path} is a file; expected the folder of a checkpoint")
    if "://" not in path and not _HUB_NAME.fullmatch(path):
        raise Refusal(f"{flag}: {path} does not exist; expected the folder of a checkpoint")
    return None


def _read_config(flag: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise Refusal(
            f"{flag}: no config.json in {folder}; expected the folder of a checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise Refusal(
            f"{flag}: {path} cannot be read as JSON ({error}); copy or download it again"
        ) from error
    if not isinstance(config, dict):
        raise Refusal(f"{flag}: {path} holds a {type(config).__name__}, expected an object")
    return config


def _hub_config(flag: str, path: str, args: Any, revision: str | None, **more: Any) -> Any:
    from sglang.srt.utils.hf_transformers_utils import get_config

    try:
        return get_config(path, trust_remote_code=args.trust_remote_code, revision=revision, **more)
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise Refusal(
            f"{flag}: {path} is neither a checkpoint's folder here nor a model that a hub gives "
            f"({first})"
        ) from error


def _architectures(config: Mapping[str, Any]) -> list[str]:
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _is_head(config: Mapping[str, Any]) -> bool:
    return "dflash_config" in config or any("DFlash" in name for name in _architectures(config))


def _is_target(config: Mapping[str, Any]) -> bool:
    """Whether it is the config of a whole model, of any family."""
    full = ("ForConditionalGeneration", "ForCausalLM")
    return not _is_head(config) and any(n.endswith(full) for n in _architectures(config))


def load_config(args: Any, models: Models | None = None) -> GlanceConfig:
    """The run's :class:`GlanceConfig`; ``args`` reads like ServerArgs."""
    models = models or read_models(args)
    sizes = {
        name: getattr(models.text, name)
        for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    }
    config = resolve(
        parse_head(models.head, sizes),
        block=args.speculative_dflash_block_size,
        budget=args.speculative_num_draft_tokens,
        topk=args.speculative_eagle_topk,
    )
    if config.topk > sizes["vocab_size"]:
        vocab = sizes["vocab_size"]
        refuse("--speculative-eagle-topk", config.topk, f"at most the vocabulary, {vocab}")
    return config
