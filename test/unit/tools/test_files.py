"""Files are whole or absent, and a full disk is said with its file."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sglang.glance.cli.failures import Failed
from sglang.glance.cli.files import Lines, check_file, check_folder, whole, write_json


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A write beyond 10,000 bytes of a file fails, as on a full disk."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, was[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, was)
    signal.signal(signal.SIGXFSZ, handler)


LARGE = {"weight": torch.zeros(100_000)}


@pytest.mark.parametrize(
    "save",
    [
        lambda path: torch.save(LARGE, path),
        lambda path: save_file(LARGE, path),
        lambda path: path.write_bytes(bytes(20_000)),
    ],
    ids=["torch", "safetensors", "bytes"],
)
def test_a_full_disk_leaves_what_was_there(full_disk: None, tmp_path: Path, save) -> None:
    path = tmp_path / "file.pt"
    path.write_text("before")
    with (
        pytest.raises(Failed, match=f"{path} cannot be written: .*MiB are free"),
        whole(path) as part,
    ):
        save(part)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_whole(full_disk: None, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"a": 1})
    with pytest.raises(Failed, match="out.json cannot be written"):
        write_json(path, ["x" * 20_000])
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "link"
    pipe.symlink_to("/dev/full")
    with pytest.raises(Failed, match="No space left on device"):
        write_json(pipe, {})
    write_json(Path("/dev/null"), {})
    assert pipe.is_symlink() and not Path("/dev/null").is_file()


def test_rows_are_on_disk_as_they_come(full_disk: None, tmp_path: Path) -> None:
    lines = Lines(tmp_path / "rows.jsonl")
    for number in range(3):
        lines.add({"row": number})
        assert len(lines.path.read_bytes().splitlines()) == number + 1
    with pytest.raises(Failed, match="rows.jsonl cannot be written"):
        lines.add({"row": "x" * 20_000})
    lines.close()
    kept = lines.path.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["row"] for line in kept if line.endswith(b"\n")] == [0, 1, 2]


def test_a_check_leaves_no_trace(tmp_path: Path) -> None:
    check_file("--json", tmp_path / "a.json")
    check_folder("--out", tmp_path / "out")
    check_folder("--out", tmp_path)
    check_folder("--out", tmp_path / "parents" / "are" / "made")
    check_file("--json", None)
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    check_file("--json", kept)
    assert kept.read_text() == "{}"
