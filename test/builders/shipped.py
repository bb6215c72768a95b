"""Token ids of the shipped models, read from their files."""

from __future__ import annotations

import json

from builders.heads import config_of
from sglang.glance.shipped import HEAD, READER

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
_vocab: dict[str, int] = _tokenizer["model"]["vocab"]
BLANKS = tuple(
    number for text, number in _vocab.items() if set(text) <= set("\u0109\u010a\u010d\u0120")
)
# Special tokens and the bytes 0 and 1: nothing the reader ever writes.
_bytes = [_vocab[token] for token in ("\u0100", "\u0101")]
NEVER_WANTED = tuple(sorted({*_special, *_bytes} - {EOS})[:8])


def token(text: str) -> int:
    """The id of a token as it is written, a space before it included."""
    return _vocab[text.replace(" ", "\u0120")]
