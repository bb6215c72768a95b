"""Rows in a target's own chat template, by its transformers processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.glance.prompts.pictures import picture, sendable
from sglang.glance.prompts.rows import InputError, Prompt, chat


def check_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise InputError(f"--model-path: {path} has no config.json; expected a Hugging Face folder")


def chat_text(processor: Any, prompt: Prompt) -> str:
    """The target's chat format, up to where its answer begins."""
    turns = chat(prompt, lambda name: {"type": "image"})
    return processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)


class Prompter:
    def __init__(self, path: Path) -> None:
        check_folder(path)
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(path)
        self.tokenizer = self.processor.tokenizer
        self.image_id = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        # Tokens in whose place the target puts the states of a picture or a video.
        tokens = [getattr(self.processor, f"{kind}_token", None) for kind in ("image", "video")]
        self.vision_ids = {self.tokenizer.convert_tokens_to_ids(each) for each in tokens if each}

    def text(self, prompt: Prompt) -> str:
        return chat_text(self.processor, prompt)

    def request(self, prompt: Prompt) -> dict:
        """The body that ``Server.generate`` sends for ``prompt``, and the row's task."""
        images = [sendable(name) for name in prompt.pictures]
        return {"text": self.text(prompt), "images": images, "task": prompt.group}

    def count(self, prompt: Prompt) -> int:
        """Prompt tokens, the pictures' included; no pixel is processed. Raises ``ValueError`` for
        a picture that cannot be decoded, or that the processor takes none of its shape."""
        images = [picture(name) for name in prompt.pictures]
        ids = self.tokenizer(self.text(prompt))["input_ids"]
        places = ids.count(self.image_id)
        if places != len(images):
            raise ValueError(
                f"the prompt has {places} image places for {len(images)} images; it must not "
                f"hold {self.processor.image_token!r} itself"
            )
        if not images:
            return len(ids)
        sizes = [(image.height, image.width) for image in images]
        counted = self.processor._get_num_multimodal_tokens(image_sizes=sizes)
        return len(ids) - places + sum(counted.num_image_tokens)

    def inputs(self, prompt: Prompt, answer: Sequence[int]) -> dict:
        """The model's arguments for prompt and answer together, one row."""
        import torch

        images = [picture(name) for name in prompt.pictures]
        given = {"images": images} if images else {}
        out = self.processor(text=[self.text(prompt)], **given, return_tensors="pt")
        ids = torch.cat([out["input_ids"], torch.tensor([answer], dtype=torch.long)], dim=1)
        out["input_ids"], out["attention_mask"] = ids, torch.ones_like(ids)
        if "mm_token_type_ids" in out:
            missing = ids.shape[1] - out["mm_token_type_ids"].shape[1]
            out["mm_token_type_ids"] = torch.nn.functional.pad(
                out["mm_token_type_ids"], (0, missing)
            )
        return dict(out)
