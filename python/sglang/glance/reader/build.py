"""A reader to start from: another reader's weights under a tokenizer made for the tasks."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import torch
from sglang.glance.tasks import TASKS, make
from transformers import (
    AutoConfig,
    AutoProcessor,
    GenerationConfig,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    Qwen3VLForConditionalGeneration,
)

VOCAB = 1024
VISION_LAYERS = 6
TEXTS_A_TASK = 1500  # samples whose wording the tokenizer is trained on
_SPECIAL = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def wording() -> list[str]:
    """Prompts and answers without what is to be read, which stays one token a character."""
    texts = []
    for task in TASKS:
        # a chart is slow to draw, and few phrases say all of its wording
        for index in range(TEXTS_A_TASK // (10 if task == "chart" else 1)):
            sample = make(task, "train", index)
            for text in (sample.prompt, sample.answer):
                texts.append(re.sub(r"[A-Z0-9][A-Z0-9.:/%]+|\d", " ", text))
    return texts


def built(start: Path) -> tuple[Qwen3VLForConditionalGeneration, ProcessorMixin]:
    """The model of ``start``, float32, with the tasks' tokenizer and its embedding."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        start, dtype=torch.float32, attn_implementation="eager"
    )
    processor = AutoProcessor.from_pretrained(start)
    old = processor.tokenizer
    new = old.train_new_from_iterator(wording(), vocab_size=VOCAB)
    _move_embedding(model, old, new)
    deepen(model, VISION_LAYERS)
    processor.tokenizer = new
    for name in (
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ):
        setattr(model.config, name, new.convert_tokens_to_ids(_SPECIAL[name]))
        if hasattr(processor, name):
            setattr(processor, name, new.convert_tokens_to_ids(_SPECIAL[name]))
    text = model.config.text_config
    text.eos_token_id = new.convert_tokens_to_ids("<|im_end|>")
    text.bos_token_id = text.pad_token_id = new.convert_tokens_to_ids("<|endoftext|>")
    model.generation_config = GenerationConfig(
        eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id
    )
    return model, processor


@torch.no_grad()
def _move_embedding(
    model: Qwen3VLForConditionalGeneration,
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
) -> None:
    """A row for each new token: the mean of the old rows of the same text."""
    rows = model.get_input_embeddings().weight.clone()
    model.resize_token_embeddings(VOCAB, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    for index in range(VOCAB):
        token = new.convert_ids_to_tokens(index)
        if token is None:
            weight[index] = rows.mean(0)
        elif (known := old.convert_tokens_to_ids(token)) is not None:
            weight[index] = rows[known]
        else:
            text = new.convert_tokens_to_string([token])
            weight[index] = rows[old.encode(text, add_special_tokens=False)].mean(0)
    model.config.text_config.vocab_size = VOCAB


@torch.no_grad()
def deepen(model: Qwen3VLForConditionalGeneration, depth: int) -> None:
    """Vision layers up to ``depth``: copies of the last that add nothing yet."""
    blocks = model.model.visual.blocks
    while len(blocks) < depth:
        block = copy.deepcopy(blocks[-1])
        for last in (block.attn.proj, block.mlp.linear_fc2):
            last.weight.zero_()
            last.bias.zero_()
        blocks.append(block)
    model.config.vision_config.depth = len(blocks)


def loaded(folder: Path) -> tuple[Qwen3VLForConditionalGeneration, ProcessorMixin]:
    """A reader that was saved."""
    config = AutoConfig.from_pretrained(folder)
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model, AutoProcessor.from_pretrained(folder)


def saved(model: Qwen3VLForConditionalGeneration, processor: ProcessorMixin, folder: Path) -> None:
    """bfloat16 weights, configuration, tokenizer and processor."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    state.pop("lm_head.weight", None)  # tied
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder, state_dict=state)
    processor.save_pretrained(folder)
