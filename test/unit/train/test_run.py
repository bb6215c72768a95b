"""The whole command on finished rows, the cache of states, answers from a stand-in server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from sglang.glance.cli import run as command_line
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import InputError, Prompt, load_numbered
from sglang.glance.serving.server import Answer
from sglang.glance.shipped import PICTURES, READER
from sglang.glance.train.blocks import TappedRow
from sglang.glance.train.data import Row, kept
from sglang.glance.train.generate import generate
from sglang.glance.train.taps import CacheKey, TapCache
from sglang.srt.speculative.glance.engine.start.checkpoint import check_weights
from sglang.srt.speculative.glance.head_config import parse_head

KEY = CacheKey("reader", "float32", (0, 1), "hash")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped questions with the answers that the reader was taught."""
    prompter, path = Prompter(READER), tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = []
    answers = map(json.loads, (PICTURES / "prompts.jsonl").read_text().splitlines()[:8])
    for asked, (number, prompt) in zip(answers, load_numbered(PICTURES), strict=False):
        ids = prompter.tokenizer(asked["answer"])["input_ids"] + [prompter.tokenizer.eos_token_id]
        count = prompter.count(prompt)
        about = {"number": number, "num_prompt": count, "ids": ids, "text": asked["answer"]}
        row = Row(**kept(prompt, path.parent), **about)
        lines.append(msgspec.json.encode(row) + b"\n")
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture
def command(rows: Path, tmp_path: Path) -> Callable[..., int]:
    def run(*more: str) -> int:
        given = ["--model-path", str(READER), "--rows", str(rows), "--out", str(tmp_path / "out")]
        given += ["--block", "4", "--held-out", "2", "--epochs", "2", "--batch-rows", "3"]
        if "EAGLE3" not in more:
            given += ["--layers", "1", "--anchors", "4"]
        return command_line.run("train", [*given, "--device", "cpu", *more])

    return run


def test_from_rows_to_a_head(command: Callable, tmp_path: Path) -> None:
    assert command() == 0
    head = tmp_path / "out" / "head"
    config = json.loads((head / "config.json").read_text())
    target = json.loads((READER / "config.json").read_text())["text_config"]
    assert parse_head(config, target).block == 4
    check_weights(head, config, 5)
    card = json.loads((head / "card.json").read_text())
    assert card["plan"]["steps"] == 4
    assert card["held_out"]["num_answers"] == 2
    assert 1 <= card["held_out"]["accept_len"] <= 4
    assert len(card["provenance"]["data"]) == 64
    text = (head / "README.md").read_text()
    assert card["provenance"]["data"] in text
    assert "Accept length = (answer tokens - answers) / rounds" in text
    assert (head / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_an_eagle3_head_of_the_same_rows(command: Callable, tmp_path: Path) -> None:
    assert command("--algorithm", "EAGLE3") == 0
    head = tmp_path / "out" / "head"
    config = json.loads((head / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    shapes = {name: w.shape for name, w in load_file(head / "model.safetensors").items()}
    assert shapes["midlayer.self_attn.q_proj.weight"] == (256, 512)
    assert shapes["lm_head.weight"] == (config["vocab_size"], 256)
    assert "--speculative-algorithm EAGLE3" in (head / "README.md").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--taps", "1,2"], "expected three ascending layers of 0 to 4"),
        (["--taps", "1,2,5"], "expected three ascending layers of 0 to 4"),
        (["--layers", "2"], "has one layer"),
    ],
)
def test_an_eagle3_head_that_cannot_be(
    command: Callable, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert command("--algorithm", "EAGLE3", *more) == 2
    assert said in capsys.readouterr().err


def test_states_without_the_picture(command: Callable, tmp_path: Path) -> None:
    assert command("--text-only-states") == 0
    blind = TapCache(tmp_path / "out" / "taps", 8, key_of(tmp_path / "out"))(0)
    assert "not for serving" in (tmp_path / "out" / "head" / "README.md").read_text()
    (tmp_path / "out").rename(tmp_path / "blind")
    assert command() == 0
    fused = TapCache(tmp_path / "out" / "taps", 8, key_of(tmp_path / "out"))(0)
    assert torch.equal(blind.ids[blind.prompt_len :], fused.ids[fused.prompt_len :])
    assert blind.prompt_len < fused.prompt_len - 50  # a picture is 60 tokens
    assert not torch.equal(blind.taps[-1], fused.taps[-1])


def key_of(out: Path) -> CacheKey:
    return msgspec.json.decode((out / "taps" / "key.json").read_bytes(), type=CacheKey)


def test_the_same_command_again_changes_nothing(command: Callable, tmp_path: Path) -> None:
    weights = tmp_path / "out" / "head" / "model.safetensors"
    assert command() == 0
    first = weights.read_bytes()
    weights.unlink()
    assert command() == 0
    assert weights.read_bytes() == first


def test_other_options_in_the_same_folder(
    command: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    assert command("--lr", "0.1") == 2
    assert "lr 0.0006, now 0.1" in capsys.readouterr().err
    assert command("--taps", "1,2") == 2
    assert "holds the states of other rows, taps or another target" in capsys.readouterr().err


def test_without_a_cache_the_head_is_the_same(command: Callable, tmp_path: Path) -> None:
    assert command() == 0
    weights = tmp_path / "out" / "head" / "model.safetensors"
    first = weights.read_bytes()
    (tmp_path / "out").rename(tmp_path / "before")
    assert command("--no-cache") == 0
    assert weights.read_bytes() == first
    assert not (tmp_path / "out" / "taps").exists()


def test_a_disk_too_small(
    command: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    assert command() == 2
    assert "0.0 are free: use fewer rows or smaller pictures, or --no-cache" in (
        capsys.readouterr().err
    )


def test_cached_states(make_row: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In shards of two; what an interruption leaves is kept."""
    monkeypatch.setattr("sglang.glance.train.taps.ROWS_A_SHARD", 2)
    rows, asked = [make_row(10 + i, 4, seed=i) for i in range(5)], []

    def tap(index: int) -> TappedRow:
        asked.append(index)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return rows[index]

    cache = TapCache(tmp_path, 5, KEY)
    assert cache.num_missing == 5
    with pytest.raises(KeyboardInterrupt):
        cache.fill(tap, lambda done: None)
    cache = TapCache(tmp_path, 5, KEY)
    assert cache.num_missing == 3
    cache.fill(tap, lambda done: None)
    assert asked == [0, 1, 2, 3, 2, 3, 4]
    assert cache.num_missing == 0
    for index in (4, 0, 3):
        got = cache(index)
        assert torch.equal(got.ids, rows[index].ids)
        assert got.prompt_len == 4
        assert torch.equal(got.taps, rows[index].taps)
    with pytest.raises(InputError, match="holds the states of other rows"):
        TapCache(tmp_path, 5, msgspec.structs.replace(KEY, taps=(0, 2)))


def test_answers_are_written_in_order_as_they_come(tmp_path: Path) -> None:
    class Server:
        def generate(self, request: dict, **sampling: object) -> Answer:
            if "stop" in request["text"]:
                raise RuntimeError("the server is gone")
            assert sampling == {"max_new_tokens": 9}
            assert len(request["images"]) == ("picture" in request["text"])
            return Answer([5, 500], "a", {"prompt_tokens": len(request["text"])})

    seen = str(tmp_path / "x.png")
    prompts = [
        (n, Prompt(prompt=f"picture {n}", image=seen, task="t") if n % 2 else Prompt(prompt=f"{n}"))
        for n in range(40)
    ]
    prompts.append((40, Prompt(prompt="stop")))
    out, done = tmp_path / "out" / "rows.jsonl", []
    out.parent.mkdir()
    with pytest.raises(RuntimeError, match="the server is gone"):
        generate(
            Server(),
            prompts,
            out,
            lambda prompt: {"text": f"<{prompt.prompt}>", "images": prompt.pictures},
            "cpu",
            9,
            done.append,
        )
    written = [msgspec.json.decode(line, type=Row) for line in out.read_bytes().splitlines()]
    assert [row.number for row in written] == list(range(40))
    answer = {"ids": [5, 500], "text": "a"}
    assert written[7] == Row(
        number=7, prompt="picture 7", image="../x.png", num_prompt=11, **answer
    )
    assert written[8] == Row(number=8, prompt="8", num_prompt=3, **answer)
    assert sum(done) == 40
