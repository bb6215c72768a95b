"""The rows that ``bench``, ``audit``, ``law`` and ``train`` read, checked before work starts.

docs/requests.md describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from sglang.glance.prompts.pictures import is_address, is_path, picture

NAME = "prompts.jsonl"  # in a folder
NO_TASK = "-"
PLACE = "<image>"  # in a prompt with pictures SGLang puts one there
POOLED = "all"  # what the rows of all tasks together are called
SHOWN_ERRORS = 10


class InputError(ValueError):
    """Rows or options that cannot be worked with; the message names each."""


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    text: str


class Picture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image"):
    image: str


class Url(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str


class ImageUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image_url"):
    image_url: Url


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str | list[Text | Picture | ImageUrl]


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row: ``prompt`` with ``image`` or ``images``, or ``messages``.

    A picture is a path, a data URL or an address. In a file, paths are relative to that file;
    :func:`load_numbered` completes them.
    """

    prompt: str | None = None
    image: str | None = None
    images: list[str] | None = None
    messages: list[Message] | None = None
    task: str | None = None

    @property
    def group(self) -> str:
        """What a measurement groups the row by."""
        return self.task or NO_TASK

    @property
    def turns(self) -> list[Message]:
        """Pictures come before a ``prompt``'s text."""
        if self.messages is not None:
            return self.messages
        given = [self.image] if self.image is not None else self.images or []
        return [Message("user", [*map(Picture, given), Text(self.prompt or "")])]

    @property
    def pictures(self) -> list[str]:
        """In the order in which the chat template asks for them."""
        parts = (part for turn in self.turns for part in _parts(turn))
        return [_source(part) for part in parts if not isinstance(part, Text)]


P = TypeVar("P", bound=Prompt)
S = TypeVar("S")
T = TypeVar("T")


def _parts(turn: Message) -> list[Text | Picture | ImageUrl]:
    return [Text(turn.content)] if isinstance(turn.content, str) else turn.content


def _source(part: Picture | ImageUrl) -> str:
    return part.image if isinstance(part, Picture) else part.image_url.url


def chat(prompt: Prompt, of_picture: Callable[[str], dict]) -> list[dict[str, Any]]:
    """The turns as dictionaries. ``of_picture``: the part that stands for a picture."""

    def content(turn: Message) -> str | list[dict]:
        if isinstance(turn.content, str):
            return turn.content
        return [
            {"type": "text", "text": part.text}
            if isinstance(part, Text)
            else of_picture(_source(part))
            for part in turn.content
        ]

    return [{"role": turn.role, "content": content(turn)} for turn in prompt.turns]


def moved(prompt: P, path: Callable[[str], str]) -> P:
    """``prompt`` with ``path`` applied to each picture that is a file; all parts with a picture
    become :class:`Picture`."""

    def of(name: str) -> str:
        return path(name) if is_path(name) else name

    def part(given: Text | Picture | ImageUrl) -> Text | Picture:
        return given if isinstance(given, Text) else Picture(of(_source(given)))

    def turn(given: Message) -> Message:
        if isinstance(given.content, str):
            return given
        return Message(given.role, [part(each) for each in given.content])

    return msgspec.structs.replace(
        prompt,
        image=None if prompt.image is None else of(prompt.image),
        images=None if prompt.images is None else [of(name) for name in prompt.images],
        messages=None if prompt.messages is None else [turn(each) for each in prompt.messages],
    )


def without_pictures(prompt: Prompt) -> Prompt:
    turns = [
        Message(turn.role, [part for part in _parts(turn) if isinstance(part, Text)])
        for turn in prompt.turns
    ]
    return Prompt(messages=turns)


def check_shape(prompt: Prompt) -> None:
    """Raises ``ValueError`` for what no chat template could render as it was meant."""
    if prompt.task == POOLED:
        raise ValueError(f"`task` is {POOLED!r}, which is what all rows together are called")
    if (prompt.prompt is None) == (prompt.messages is None):
        raise ValueError("expected `prompt` (text) or `messages` (a list), one of them")
    if prompt.image is not None and prompt.images is not None:
        raise ValueError("expected `image` (one) or `images` (a list), not both")
    if prompt.messages is None:
        if not prompt.prompt.strip():
            raise ValueError("`prompt` is empty")
    else:
        _check_messages(prompt)
    parts = [part for turn in prompt.turns for part in _parts(turn)]
    if prompt.pictures and any(isinstance(p, Text) and PLACE in p.text for p in parts):
        raise ValueError(
            f"the text holds {PLACE!r}, which SGLang takes for a picture's place; leave it out"
        )


def _check_messages(prompt: Prompt) -> None:
    if prompt.image is not None or prompt.images is not None:
        raise ValueError("with `messages`, pictures are parts of a user's `content`")
    if not prompt.messages or prompt.messages[-1].role != "user":
        raise ValueError("the last of `messages` must be the user's: the model answers it")
    for number, turn in enumerate(prompt.messages):
        parts = _parts(turn)
        if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
            raise ValueError(f"`messages[{number}]` is empty")
        if turn.role == "system" and number:
            raise ValueError(f"`messages[{number}]`: a system message must be the first")
        if turn.role != "user" and not all(isinstance(part, Text) for part in parts):
            raise ValueError(f"`messages[{number}]`: only the user may send pictures")


def check_pictures(prompt: Prompt) -> None:
    """Decodes each picture; addresses are left to the server."""
    for name in prompt.pictures:
        if not is_address(name):
            picture(name)


def rows_file(path: Path) -> Path:
    """``path``, or ``prompts.jsonl`` in it where it is a folder."""
    return path / NAME if path.is_dir() else path


def load_numbered(
    path: Path, check: Callable[[P], object] = check_pictures, kind: type[P] = Prompt
) -> list[tuple[int, P]]:
    """Line numbers and rows of :func:`rows_file`, pictures with their whole paths.

    ``check`` looks at each row, pictures included; what it refuses is reported with the rest.
    Raises :class:`InputError`, which names every bad line, up to ten of them.
    """
    path = rows_file(path)
    decode = msgspec.json.Decoder(kind).decode

    def row(line: bytes) -> P:
        given = decode(line)
        check_shape(given)
        whole = moved(given, lambda name: str(path.parent / name))
        check(whole)
        return whole

    return by_line(numbered_lines(path), path, row)


def load_prompts(
    path: Path, check: Callable[[P], object] = check_pictures, kind: type[P] = Prompt
) -> list[P]:
    return [row for _, row in load_numbered(path, check, kind)]


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; expected a JSONL file, or a folder that "
            f"holds {NAME}"
        ) from error
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def by_line(
    items: Iterable[tuple[int, S]], path: Path, work: Callable[[S], T]
) -> list[tuple[int, T]]:
    """``work`` on every numbered item, at least one; whatever it refuses is reported together,
    line by line."""
    done, errors = [], []
    for number, item in items:
        try:
            done.append((number, work(item)))
        except (ValueError, OSError) as error:
            errors.append(f"{path}, line {number}: {error}")
    if errors:
        more = len(errors) - SHOWN_ERRORS
        tail = [f"... and {more} more"] if more > 0 else []
        raise InputError("\n".join([*errors[:SHOWN_ERRORS], *tail]))
    if not done:
        raise InputError(f"{path} has no rows; expected one JSON object a line")
    return done


def files(path: Path, rows: Sequence[Prompt]) -> list[Path]:
    """What ``path`` and the ``rows`` it holds consist of: a folder as a whole, or file and
    pictures."""
    if path.is_dir():
        return [path]
    named = (name for row in rows for name in row.pictures if is_path(name))
    return [path, *map(Path, dict.fromkeys(named))]
