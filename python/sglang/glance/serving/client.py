"""What the audit asks a server, and what it reads from the answer.

Requests go through ``/v1/chat/completions``: the server applies its own model's chat template, so
any model can be asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import requests
from sglang.glance.cli.failures import Unanswered
from sglang.glance.prompts.pictures import sendable
from sglang.glance.prompts.rows import Prompt, chat, load_prompts
from sglang.glance.shipped import PICTURES

BEST = 5  # of plain's tokens are known by their log-probability at every position
TIMEOUT_S = 600
TEXTS = (
    "Hello.",
    "What is the Total?",
    "Count: 1, 2, 3, 4, 5, 6,",
    "Describe a big red circle beside a small blue box.",
    "List the months of the year, one a line.",
    "abc abc abc abc abc abc abc abc",
    "Write a JSON object with the fields name and price.",
    "def add(a, b):",
)


@dataclass(frozen=True)
class Reply:
    """``best``: at each position the log-probability of plain's best tokens by id, where asked.
    ``rid``: the server's name of the request."""

    ids: list[int]
    rounds: int = 0
    best: list[dict[int, float]] = field(default_factory=list)
    rid: str = ""


@dataclass(frozen=True)
class Endpoint:
    url: str

    def description(self) -> dict[str, str | None]:
        """Model, architecture, dtype and speculative algorithm."""
        model, server = self._get("/model_info"), self._get("/server_info")
        # One model lies under different folders on two machines.
        return {
            "model": model["model_path"].rstrip("/").rsplit("/", 1)[-1],
            "architectures": ", ".join(model.get("architectures") or []),
            "weight version": model.get("weight_version"),
            "dtype": dtype_of(server["dtype"], self.url),
            "algorithm": server.get("speculative_algorithm"),
        }

    def ask(self, question: Prompt, max_tokens: int, margins: bool = False) -> Reply:
        """The greedy answer. ``margins``: with the best tokens' log-probabilities."""
        body = {
            "model": "audit",
            "messages": chat(question, image_url),
            "temperature": 0,
            # A model's own default penalty would make GLANCE decode plainly.
            "repetition_penalty": 1.0,
            "max_tokens": max_tokens,
            "return_token_ids": True,
            "return_meta_info": True,
        }
        if margins:
            body |= {"logprobs": True, "top_logprobs": BEST}
        choice = self._json("POST", "/v1/chat/completions", json=body)["choices"][0]
        meta = choice["meta_info"]
        best = [
            {token: logprob for logprob, token, *_ in row}
            for row in (meta.get("output_top_logprobs") or [])
        ]
        ids, rounds = choice["response_token_ids"], meta.get("spec_verify_ct", 0)
        return Reply(ids, rounds, best, meta.get("id", ""))

    def _get(self, path: str) -> dict:
        return self._json("GET", path)

    def _json(self, method: str, path: str, **given: object) -> dict:
        url = self.url.rstrip("/") + path
        try:
            reply = requests.request(method, url, timeout=TIMEOUT_S, **given)
        except requests.RequestException as error:
            raise Unanswered(
                f"no answer from {url} ({type(error).__name__}): is the server up, and is this its "
                "address?"
            ) from error
        if not reply.ok:
            raise Unanswered(f"{url} answered {reply.status_code}: {reply.text[:300]}")
        try:
            return reply.json()
        except requests.JSONDecodeError as error:
            raise Unanswered(f"{url} answered no JSON: is it an SGLang server?") from error


def image_url(name: str) -> dict:
    return {"type": "image_url", "image_url": {"url": sendable(name)}}


def dtype_of(dtype: str, url: str) -> str:
    name = {"half": "float16", "float": "float32"}.get(dtype, dtype).removeprefix("torch.")
    if name == "auto":
        raise ValueError(f"{url} does not say its dtype: start both servers with --dtype")
    return name


def shipped_questions() -> list[Prompt]:
    """The shipped pictures with their questions, and texts."""
    return load_prompts(PICTURES) + [Prompt(prompt=text) for text in TEXTS]
