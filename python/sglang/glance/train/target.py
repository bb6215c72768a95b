"""The target: its sizes, its prompts as SGLang sees them, its states where SGLang captures them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.data import InputError
from sglang.glance.train.loss import Vocabulary

FAMILIES = ("Qwen3VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


def read_config(path: Path) -> Any:
    """The transformers config of a target that GLANCE serves."""
    from transformers import AutoConfig

    if not (path / "config.json").is_file():
        raise InputError(f"--model-path: {path} has no config.json; expected a Hugging Face folder")
    config = AutoConfig.from_pretrained(path)
    family = (config.architectures or ["none"])[0]
    if family not in FAMILIES:
        raise InputError(
            f"--model-path: got a {family}, expected one of {', '.join(FAMILIES)}: GLANCE serves "
            "no others"
        )
    return config


def chat_text(processor: Any, prompt: str, has_image: bool) -> str:
    """The target's chat format, up to where its answer begins."""
    content = [{"type": "image"}] * has_image + [{"type": "text", "text": prompt}]
    return processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )


class Prompter:
    """Prompts with at most one picture, in the target's chat format."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(path)
        self.tokenizer = self.processor.tokenizer
        self.image_id = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)

    def text(self, prompt: str, has_image: bool) -> str:
        return chat_text(self.processor, prompt, has_image)

    def count(self, prompt: str, image: Image.Image | None) -> int:
        """Prompt tokens, the picture's included, without touching a pixel."""
        ids = self.tokenizer(self.text(prompt, image is not None))["input_ids"]
        pads = ids.count(self.image_id)
        if pads != (image is not None):
            raise ValueError(
                f"the prompt has {pads} image places for {int(image is not None)} images; it must "
                f"not hold {self.processor.image_token!r} itself"
            )
        if image is None:
            return len(ids)
        size = (image.height, image.width)
        counted = self.processor._get_num_multimodal_tokens(image_sizes=[size])
        return len(ids) - 1 + counted.num_image_tokens[0]

    def inputs(self, prompt: str, image: Image.Image | None, answer: Sequence[int]) -> dict:
        """The model's arguments for prompt and answer together, one row."""
        images = {} if image is None else {"images": [image]}
        out = self.processor(
            text=[self.text(prompt, image is not None)], **images, return_tensors="pt"
        )
        ids = torch.cat([out["input_ids"], torch.tensor([answer], dtype=torch.long)], dim=1)
        out["input_ids"], out["attention_mask"] = ids, torch.ones_like(ids)
        if "mm_token_type_ids" in out:
            missing = ids.shape[1] - out["mm_token_type_ids"].shape[1]
            out["mm_token_type_ids"] = torch.nn.functional.pad(
                out["mm_token_type_ids"], (0, missing)
            )
        return dict(out)


class Target:
    """The stock transformers model, teacher-forced over whole rows."""

    def __init__(
        self, path: Path, prompter: Prompter, taps: Iterable[int], device: str, dtype: torch.dtype
    ) -> None:
        from transformers import AutoModelForImageTextToText

        self.prompter, self.device, self.taps = prompter, device, tuple(taps)
        self.model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype)
        self.model.to(device).eval().requires_grad_(False)

    @torch.inference_mode()
    def states(self, inputs: dict) -> torch.Tensor:
        """``[L, K * H]``: the inputs of the layers after the tapped ones (of the last: the final
        norm's; of -1: the first layer's, which are the embeddings).

        SGLang captures there. transformers' ``hidden_states`` hold a layer's output before
        DeepStack's addition, which is another tensor at image positions.
        """
        text, kept = self.model.model.language_model, {}
        readers = [*text.layers, text.norm]

        def keep(tap: int) -> Any:
            def hook(module: Any, args: tuple, kwargs: dict) -> None:
                kept[tap] = (args[0] if args else kwargs["hidden_states"])[0]

            return hook

        hooks = [
            readers[tap + 1].register_forward_pre_hook(keep(tap), with_kwargs=True)
            for tap in self.taps
        ]
        try:
            moved = {name: value.to(self.device) for name, value in inputs.items()}
            self.model.model(**moved, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([kept[tap] for tap in self.taps], dim=-1)

    def tapped(
        self, prompt: str, image: Image.Image | None, answer: Sequence[int], num_prompt: int | None
    ) -> TappedRow:
        """``num_prompt``: the prompt's tokens as the engine counted them; None where it was asked
        otherwise."""
        inputs = self.prompter.inputs(prompt, image, answer)
        ids = inputs["input_ids"][0]
        counted = len(ids) - len(answer)
        if num_prompt not in (counted, None):
            raise ValueError(
                f"the prompt has {counted} tokens here and {num_prompt} in the "
                "engine: the rows were made with another processor or target; make them again"
            )
        taps = self.states(inputs)[:-1].bfloat16().cpu()
        return TappedRow(ids, counted, taps)

    def vocabulary(self, dtype: torch.dtype) -> Vocabulary:
        """Copies, so that the model can go."""
        embedding = self.model.get_input_embeddings().weight.detach()
        lm_head = self.model.get_output_embeddings().weight.detach()
        return Vocabulary(embedding.to(dtype).clone(), lm_head.to(dtype).clone())
