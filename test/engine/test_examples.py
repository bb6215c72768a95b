"""Each program of ``examples/`` runs as it is, with the shipped models."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PICTURES, READER, Server, chat_body, picture_prompts, whole_chat
from newcomer import ROOT, assert_read, assert_reads, serving, typed
from sglang.glance.serving.server import free_port

EXAMPLES = ROOT / "examples"
LINES = 40


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """``train_head.sh`` on four rows, begun first: other examples run while it works."""
    folder = tmp_path_factory.mktemp("train-head")
    rows = (PICTURES / "prompts.jsonl").read_text().splitlines()[:8]
    data, out, port = folder / "rows.jsonl", folder / "out", free_port()
    with data.open("w") as file:
        for row in map(json.loads, rows):
            row = {"image": str(PICTURES / row["image"]), "prompt": row["prompt"]}
            file.write(json.dumps(row) + "\n")
    command = shlex.join(["examples/train_head.sh", *map(str, (READER, data, out))])
    with serving(f"{command} --port {port}", port, folder / "log") as server:
        yield server, out


def test_they_are_short_and_run_here() -> None:
    tested = {"offline_engine.py", "openai_client.py", "train_head.sh"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == tested
    for name in tested:
        assert len((EXAMPLES / name).read_text().splitlines()) < LINES


def test_the_clients_own_picture_is_a_shipped_one() -> None:
    assert runpy.run_path(str(EXAMPLES / "openai_client.py"))["PICTURE"] in map(
        str, PICTURES.iterdir()
    )


def test_openai_client(glance: Server) -> None:
    given = shlex.join([str(PICTURES / "000001-caption.png"), "Caption it.", f"{glance.url}/v1"])
    answer = typed(f".venv/bin/python examples/openai_client.py {given}")
    (asked,) = [q for q in picture_prompts(PICTURES) if "purple moon" in q["values"]]
    whole = whole_chat(glance, chat_body(asked, "Caption it.", max_tokens=256))
    assert answer == whole["choices"][0]["message"]["content"] + "\n"


def test_offline_engine() -> None:
    out = typed(".venv/bin/python examples/offline_engine.py")
    assert_read(out)
    assert float(re.search(r"([\d.]+) tokens a round", out)[1]) > 2


def test_train_head_serves_what_it_trained(trained: tuple[Server, Path]) -> None:
    server, out = trained
    assert_reads(server, head=out / "head")
    assert json.loads((out / "head" / "config.json").read_text())["num_hidden_layers"] == 1
