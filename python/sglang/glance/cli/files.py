"""Files that a command writes: tried before its work starts, and never left half written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from sglang.glance.cli.failures import Failed


def check_file(flag: str, path: Path | None) -> None:
    """Raise ``ValueError`` if ``path`` cannot be written. Nothing is changed."""
    if path is None:
        return
    _check_parent(flag, path)
    if path.is_dir():
        raise ValueError(f"{flag}: {path} is a folder; expected a file")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise _refusal(flag, path, error) from error
    if not existed:
        path.unlink()


def check_folder(flag: str, path: Path | None) -> None:
    """Raise ``ValueError`` if ``path`` is not a folder to write in, nor can be made one, with its
    parents. Nothing is changed."""
    if path is None:
        return
    made = [each for each in (path, *path.parents) if not each.exists()]
    standing = made[-1].parent if made else path
    if not standing.is_dir():
        raise ValueError(f"{flag}: {standing} is a file; expected a folder")
    trial = path / ".glance-trial"
    try:
        path.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise _refusal(flag, path, error) from error
    finally:
        for each in made:
            if each.is_dir():
                each.rmdir()


def _check_parent(flag: str, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{flag}: {path}: no folder {path.absolute().parent}")


def _refusal(flag: str, path: Path, error: OSError) -> ValueError:
    return ValueError(f"{flag}: {path} cannot be written: {error.strerror}")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes ``path`` once it is complete; what was there stays until then.

    torch and safetensors tell a full disk each in its own way: all of them become :class:`Failed`.
    """
    plain = not path.exists() or path.is_file()  # a device or a pipe is written as it is
    part = path.with_name(f"{path.stem}.part{path.suffix}") if plain else path
    try:
        yield part
        if plain:
            part.replace(path)
    except (OSError, RuntimeError, SafetensorError) as error:
        if plain:
            part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: Exception) -> Failed:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    free = shutil.disk_usage(path.absolute().parent).free / 2**20
    return Failed(f"{path} cannot be written: {said} ({free:,.0f} MiB are free there)")


def write_json(path: Path, value: Any) -> None:
    """``value``, a msgspec struct or what JSON knows, indented."""
    with whole(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")


class Lines:
    """A JSONL file that grows: each row is with the operating system before the next is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)

    def add(self, row: Any) -> None:
        line = msgspec.json.encode(row) + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        self._file.close()
