"""Token ids of the shipped models, read from their files."""

from __future__ import annotations

import json

from builders.heads import config_of
from sglang.glance.assets import HEAD, READER

_config = config_of(READER)
_tokenizer = json.loads((READER / "tokenizer.json").read_text())
_special = [each["id"] for each in _tokenizer["added_tokens"]]

VOCAB: int = _config["text_config"]["vocab_size"]
EOS: int = _config["text_config"]["eos_token_id"]
IMAGE: int = _config["image_token_id"]
VIDEO: int = _config["video_token_id"]
VISION_START: int = _config["vision_start_token_id"]
VISION_END: int = _config["vision_end_token_id"]
MASK: int = config_of(HEAD)["dflash_config"]["mask_token_id"]
# Special tokens and the bytes 0 and 1: nothing the reader ever writes.
_bytes = [_tokenizer["model"]["vocab"][token] for token in ("\u0100", "\u0101")]
NEVER_WANTED = tuple(sorted({*_special, *_bytes} - {EOS})[:8])
