"""One place knows what a server needs on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sglang.glance.serving.flags import environment, serving, shell_line, short_lived


def test_a_server_s_line_can_be_pasted(tmp_path: Path) -> None:
    target, head = tmp_path / "my target", tmp_path / "head's"
    line = shell_line(serving(target, head, "cpu", dtype="float32"), "cpu")
    assert "\n" not in line
    words = shlex.split(line)
    at = words.index(sys.executable)
    assert dict(word.split("=") for word in words[:at]) == environment("cpu")
    assert words[at + 1 : at + 3] == ["-m", "sglang.launch_server"]
    flags = dict(zip(words[at + 3 :: 2], words[at + 4 :: 2], strict=True))
    assert flags["--model-path"] == str(target)
    assert flags["--speculative-draft-model-path"] == str(head)
    assert (flags["--device"], flags["--dtype"]) == ("cpu", "float32")


def test_a_gpu_needs_no_environment_and_no_device(tmp_path: Path) -> None:
    flags = serving(tmp_path, tmp_path, "cuda")
    assert environment("cuda") == {} and "--device" not in flags
    assert "--max-total-tokens" not in flags


def test_other_algorithms_need_a_pool_on_a_cpu(tmp_path: Path) -> None:
    assert "--max-total-tokens" not in serving(tmp_path, tmp_path, "cpu")
    assert "--max-total-tokens" in serving(tmp_path, tmp_path, "cpu", algorithm="EAGLE3")


def test_a_pool_holds_two_of_the_longest_requests() -> None:
    def tokens(context: int | None) -> int:
        flags = short_lived("cpu", context)
        return int(flags[flags.index("--max-total-tokens") + 1])

    assert tokens(None) == tokens(100) == 12000
    assert tokens(9000) == 18000
    assert short_lived("cuda", 9000)[-2:] == ("--context-length", "9000")


def test_servers_beside_each_other_on_a_gpu_have_pools_of_a_stated_size() -> None:
    assert "--max-total-tokens" in short_lived("cuda")


def test_float32_on_a_gpu_takes_kernels_that_know_it() -> None:
    """By SGLang's defaults on Hopper neither text nor pictures are attended to in float32."""
    given = ("--dtype", "float32", "--port", "1")
    flags = short_lived("cuda", given=given)
    assert flags[-4:] == given
    chosen = dict(zip(flags, flags[1:]))
    assert chosen["--attention-backend"] == "triton" and chosen["--mm-attention-backend"] == "sdpa"
    assert environment("cuda", given) == {"TRITON_F32_DEFAULT": "ieee"}
    bfloat16 = ("--dtype", "bfloat16")
    assert "--attention-backend" not in short_lived("cuda", given=bfloat16)
    assert environment("cuda", bfloat16) == {}
    assert "triton" not in short_lived("cpu", given=given)


def test_a_line_of_a_float32_server_on_a_gpu_is_whole(tmp_path: Path) -> None:
    line = shell_line(serving(tmp_path, tmp_path, "cuda", dtype="float32"), "cuda")
    assert line.startswith("TRITON_F32_DEFAULT=ieee ") and "--mm-attention-backend sdpa" in line
    assert "triton" not in shell_line(serving(tmp_path, tmp_path, "cuda", dtype="bfloat16"), "cuda")
