"""The target's own greedy answers, through a server; written as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from sglang.glance.prompts.rows import InputError, Prompt, numbered_lines
from sglang.glance.serving.server import Server
from sglang.glance.train.data import Row, kept

AT_ONCE = {"cpu": 8, "cuda": 64}
POOL = 256  # requests whose pictures are in memory together


def missing(
    prompts: Sequence[tuple[int, Prompt]], data: Path, out: Path
) -> list[tuple[int, Prompt]]:
    """Prompts of ``data`` without an answer in ``out``. A last line cut short is dropped; rows of
    another data file are refused."""
    if not out.exists():
        return list(prompts)
    text = out.read_bytes()
    if text and not text.endswith(b"\n"):
        text = text[: text.rfind(b"\n") + 1]
        out.write_bytes(text)
    known, done = dict(prompts), set()
    decode = msgspec.json.Decoder(Row).decode
    for number, line in numbered_lines(out):
        row = decode(line)
        asked = known.get(row.number)
        if asked is None or any(
            getattr(row, name) != value for name, value in kept(asked, out.parent).items()
        ):
            raise InputError(
                f"{out}, line {number} answers line {row.number} of another --data than {data}; "
                "choose another --out, or train on it as it is with --rows"
            )
        done.add(row.number)
    return [(number, prompt) for number, prompt in prompts if number not in done]


def generate(
    server: Server,
    prompts: Sequence[tuple[int, Prompt]],
    out: Path,
    request_of: Callable[[Prompt], dict],
    device: str,
    max_new_tokens: int,
    advance: Callable[[int], None],
) -> None:
    """Append one :class:`Row` a prompt to ``out``, in order, as the answers come."""

    def ask(item: tuple[int, Prompt]) -> Row:
        number, prompt = item
        answer = server.generate(request_of(prompt), max_new_tokens=max_new_tokens)
        return Row(
            **kept(prompt, out.parent),
            number=number,
            num_prompt=answer.meta["prompt_tokens"],
            ids=answer.ids,
            text=answer.text,
        )

    with out.open("ab") as file, ThreadPoolExecutor(AT_ONCE[device]) as pool:
        for start in range(0, len(prompts), POOL):
            for row in pool.map(ask, prompts[start : start + POOL]):
                file.write(msgspec.json.encode(row) + b"\n")
                file.flush()
                advance(1)
