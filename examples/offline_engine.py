"""Ask SGLang's offline `Engine` with GLANCE about a picture: no server, no port.

.venv/bin/python examples/offline_engine.py [PICTURE [QUESTION]]
"""

import sys

import sglang
from sglang.glance.shipped import HEAD, PICTURES, READER
from transformers import AutoTokenizer

PICTURE = str(PICTURES / "000000-document.png")


def main(picture: str = PICTURE, question: str = "Read the document.") -> None:
    content = [{"type": "image"}, {"type": "text", "text": question}]
    prompt = AutoTokenizer.from_pretrained(READER).apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    with sglang.Engine(
        model_path=str(READER),  # your own target and its head here
        speculative_algorithm="GLANCE",
        speculative_draft_model_path=str(HEAD),
        log_level="error",
    ) as engine:
        sampling = {"temperature": 0, "max_new_tokens": 256}
        answer = engine.generate(prompt, sampling, image_data=picture)
    print(answer["text"])
    print(f"{answer['meta_info']['spec_accept_length']:.2f} tokens a round")


# The engine's processes import this file again: without the next line each would start an engine.
if __name__ == "__main__":
    main(*sys.argv[1:])
