"""Ask a GLANCE server about a picture with the `openai` package, and print the answer as it grows.

Start the server before, in another terminal: `make serve`, or one of your own.
.venv/bin/python examples/openai_client.py [PICTURE [QUESTION [URL]]]
"""

import base64
import mimetypes
import sys
from pathlib import Path

import openai

DATA = Path(__file__).resolve().parents[1] / "python" / "sglang" / "glance" / "shipped"
PICTURE = str(DATA / "pictures" / "000000-document.png")
URL = "http://127.0.0.1:30000/v1"


def main(picture: str = PICTURE, question: str = "Read the document.", url: str = URL) -> None:
    kind, _ = mimetypes.guess_type(picture)
    data = base64.b64encode(Path(picture).read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
    content = [image, {"type": "text", "text": question}]
    client = openai.OpenAI(base_url=url, api_key="none")
    messages = [{"role": "user", "content": content}]
    try:
        stream = client.chat.completions.create(
            model="default", messages=messages, temperature=0, max_tokens=256, stream=True
        )
    except openai.APIConnectionError:
        sys.exit(f"no server answers at {url}: start one with `make serve` and wait until it is up")
    for event in stream:
        print(event.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
