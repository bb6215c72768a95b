"""Options that several commands have, and a parser whose refusals are one line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from sglang.glance.shipped import HEAD, READER

DTYPES = ("float32", "bfloat16", "float16")


class _Paragraphs(argparse.HelpFormatter):
    """Descriptions wrapped paragraph by paragraph, and every default behind its option."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", action.default
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        silent = shown in (None, "", True, False, argparse.SUPPRESS) or isinstance(shown, Path)
        return text if silent or "default" in text else f"{text} ({shown})".strip()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join(super(_Paragraphs, self)._fill_text(p, width, indent) for p in parts)


class Parser(argparse.ArgumentParser):
    """``glance NAME``; what is wrong is said in one line, without the list of all options."""

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=f"glance {name}",
            description=about,
            formatter_class=_Paragraphs,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help)\n")


def add_models(parser: argparse.ArgumentParser) -> None:
    """``--model-path`` and ``--head-path``; :func:`settle_models` fills in what is not given."""
    parser.add_argument("--model-path", type=Path, help="the target (the shipped reader)")
    parser.add_argument(
        "--head-path", type=Path, help="its head (with the shipped reader, its own)"
    )


def settle_models(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The shipped pair where nothing is given. A target of one's own needs a head of its own."""
    if options.model_path is None:
        options.model_path = READER
    if options.head_path is None:
        if not is_shipped(options.model_path):
            parser.error(
                f"give --head-path: the shipped head was trained for the shipped reader, not for "
                f"{options.model_path}"
            )
        options.head_path = HEAD
    for flag, path in (("--model-path", options.model_path), ("--head-path", options.head_path)):
        if not _may_be_served(path):
            parser.error(f"{flag}: {path} has no config.json; expected a Hugging Face folder")


def is_shipped(model: Path) -> bool:
    return model.resolve() == READER


def _may_be_served(path: Path) -> bool:
    """A folder with a config, or a name that a hub may know: ``owner/model``."""
    if (path / "config.json").is_file():
        return True
    return not path.exists() and not path.is_absolute() and len(path.parts) == 2
