"""The target: its sizes, and its states where SGLang captures them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.glance.prompts.prompter import Prompter, check_folder
from sglang.glance.prompts.rows import InputError, Prompt
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.loss import Vocabulary

FAMILIES = ("Qwen3VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


def read_config(path: Path) -> Any:
    """The transformers config of a target that GLANCE serves."""
    check_folder(path)
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    family = (config.architectures or ["none"])[0]
    if family not in FAMILIES:
        raise InputError(
            f"--model-path: got a {family}, expected one of {', '.join(FAMILIES)}: GLANCE serves "
            "no others"
        )
    return config


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

    def tapped(self, prompt: Prompt, answer: Sequence[int], num_prompt: int | None) -> TappedRow:
        """``num_prompt``: the prompt's tokens as the engine counted them; None where it was asked
        otherwise."""
        inputs = self.prompter.inputs(prompt, answer)
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
