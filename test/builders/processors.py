"""Custom logit processors, as a client sends them: by value, for a server that has no such file."""

from __future__ import annotations

import json

import dill


def by_value(processor: type) -> str:
    return json.dumps({"callable": dill.dumps(processor, recurse=True).hex()})


def penalising() -> str:
    """Penalties as they are defined, from ``custom_params``: every token put out so far counts,
    additive ones come before scaling."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    class Penalising(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            for row, params in zip(logits, custom_param_list):
                output = list(params["__req__"].output_ids)
                for token in set(output):
                    value = row[token] - params["frequency"] * output.count(token)
                    value = value - params["presence"]
                    scale = params["repetition"]
                    row[token] = value * scale if value < 0 else value / scale
            return logits

    return by_value(Penalising)


def alternating() -> str:
    """Keeps state of its own and reads the output: every second token must have an even id."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    class Alternating(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            for row, params in zip(logits, custom_param_list):
                if len(params["__req__"].output_ids) % 2:
                    row[1::2] = float("-inf")
            return logits

    return by_value(Alternating)
