"""Start-up: what a server without flags settles on, and heads that it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from builders.heads import broken_head, config_for, random_head
from builders.qwen25vl import random_qwen25vl
from builders.shipped import MASK
from harness import GLANCE, HEAD, READER, Server, chat, wait_until_up
from newcomer import ROOT, serving
from sglang.glance.serving.server import free_port


def test_defaults(glance: Server) -> None:
    info = glance.get("/server_info").json()
    assert info["speculative_algorithm"] == "GLANCE"
    assert info["speculative_num_draft_tokens"] == 32
    assert info["speculative_eagle_topk"] == 8
    assert info["speculative_dflash_block_size"] == 16


def test_the_log_says_what_the_heads_layers_do(glance: Server) -> None:
    assert "drafts with 3 layers, full attention, not causal in the block" in glance.log.read_text()


def test_overlap_is_off_on_a_cpu(glance: Server) -> None:
    """The CPU path has no second stream: overlap must not be left half on."""
    assert glance.get("/server_info").json()["disable_overlap_schedule"] is True


REFUSED = {
    "no such head": ({}, "--speculative-draft-model-path: .*/nowhere does not exist"),
    "tap of the last layer": (
        {"target_layer_ids": [0, 1, 2, 3, 5]},
        r"head config field \S*target_layer_ids",
    ),
}


def test_a_refused_start_says_one_line_and_fails(tmp_path: Path) -> None:
    """Through the command line. What SGLang prints while it is imported is not ours."""
    started = {}
    for name, (changes, _) in REFUSED.items():
        head = broken_head(HEAD, tmp_path / name, **changes) if changes else tmp_path / "nowhere"
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(READER)]
        command += [*GLANCE[:2], "--speculative-draft-model-path", str(head)]
        started[name] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    for name, process in started.items():
        _, errors = process.communicate(timeout=300)
        lines = [line for line in errors.splitlines() if "GLANCE" in line]
        assert process.returncode == 1, errors
        assert len(lines) == 1 and lines[0] == errors.splitlines()[-1], errors
        assert re.match(f"GLANCE: {REFUSED[name][1]}", lines[0])
        assert "Traceback" not in errors


def readme_command(target: Path, head: Path) -> str:
    """As printed under "Serve your own target"."""
    section = (ROOT / "README.md").read_text().partition("Serve your own target")[2]
    command = re.search(r"\S*python -m sglang\.launch_server (?:.*\\\n)*.*", section)[0]
    assert "--dtype" not in command and "--device" not in command
    return command.replace("TARGET", str(target)).replace("HEAD", str(head))


def test_own_target_in_float16_as_the_readme_prints_it(tmp_path: Path) -> None:
    target = random_qwen25vl(READER, tmp_path / "own", dtype="float16")
    head = random_head(config_for(target, MASK), tmp_path / "drafts")
    port, log = free_port(), tmp_path / "server.log"
    with serving(f"{readme_command(target, head)} --port {port}", port, log) as server:
        wait_until_up(server)
        answer = server.generate({"text": chat("Read the document.")}, max_new_tokens=24)
        info = server.get("/server_info").json()
    assert len(answer.ids) > 1 and answer.rounds > 0
    assert (info["device"], info["dtype"]) == ("cpu", "bfloat16")
    lines = log.read_text()
    assert lines.count("GLANCE: --dtype not given, float16 weights are served in bfloat16") == 1
    assert lines.count("GLANCE: --max-total-tokens not given") == 1
