"""The shape of a hostile request, and what the rules that make them share."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from builders.prompts import chat

READ = "Read all lines."
QUESTION = "What is the Total?"
SHORT = {"temperature": 0, "max_new_tokens": 8}


@dataclass(frozen=True)
class Case:
    """One request. ``body``: sent as JSON, or as it is where it is bytes."""

    name: str
    body: dict | list | bytes
    path: str = "/generate"

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Member = tuple[str, dict | list | bytes, str]


def ask(text: object = None, *, params: dict | None = None, **fields: object) -> dict:
    """A ``/generate`` body: a short greedy text request, changed where the case says so."""
    text = chat(QUESTION) if text is None else text
    return {"text": text, "sampling_params": {**SHORT, **(params or {})}, **fields}


def member(name: str, body: dict | list | bytes, path: str = "/generate") -> Member:
    return name, body, path


def shown(name: str, *urls: object) -> Member:
    """Ask about pictures, a placeholder for each."""
    return member(name, ask(chat(READ, images=len(urls)), image_data=list(urls)))


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
