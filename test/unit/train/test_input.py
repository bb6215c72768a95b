"""What is refused before work starts, and by which name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from builders.heads import broken_head
from builders.pictures import form
from builders.shipped import IMAGE, VIDEO
from PIL import Image
from sglang.glance.cli.run import run
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import InputError, Message, Picture, Prompt, Text
from sglang.glance.shipped import HEAD, READER
from sglang.glance.train.check import check, check_rows
from sglang.glance.train.cli import parser
from sglang.glance.train.data import Row, kept
from sglang.glance.train.generate import missing
from sglang.glance.train.objective import default_taps, head_config, mask_token
from sglang.glance.train.target import read_config
from sglang.srt.speculative.glance.fingerprint import fingerprint
from sglang.srt.speculative.glance.head_config import parse_head, trained_target

GOOD = {"image": "form.png", "prompt": "Read all lines."}
ANSWER = [40, 41, 42]
TEXT = json.loads((READER / "config.json").read_text())["text_config"]
VOCAB, LAYERS, LONGEST = (
    TEXT[name] for name in ("vocab_size", "num_hidden_layers", "max_position_embeddings")
)


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(READER)


@pytest.fixture(scope="module")
def target() -> object:
    return read_config(READER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    form(1).save(tmp_path / GOOD["image"])
    return tmp_path


@pytest.fixture
def row(folder: Path, prompter: Prompter) -> Row:
    """A good generated row; its prompt tokens are those of the processor's own output."""
    prompt = Prompt(prompt=GOOD["prompt"], image=str(folder / GOOD["image"]))
    num_prompt = prompter.inputs(prompt, [])["input_ids"].shape[1]
    return Row(**GOOD, number=1, num_prompt=num_prompt, ids=ANSWER, text="ab")


@pytest.fixture
def checked(folder: Path, prompter: Prompter, target: object) -> Callable:
    """``check`` on lines of a data file, with options as on the command line."""

    def run(lines: list, *options: str) -> object:
        path = folder / "data.jsonl"
        path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
        given = ["--model-path", str(READER), "--out", str(folder / "out"), "--held-out", "1"]
        if "--rows" not in options:
            given += ["--data", str(path)]
        return check(parser().parse_args([*given, *options]), target, prompter)

    return run


@pytest.mark.parametrize(("ends", "expected"), [(2048, 2048), (32768, 4096)])
def test_the_context_is_at_most_the_target_s(
    folder: Path, prompter: Prompter, target: object, ends: int, expected: int
) -> None:
    config = copy.deepcopy(target)
    config.get_text_config().max_position_embeddings = ends
    path = folder / "data.jsonl"
    path.write_text(2 * f"{json.dumps(GOOD)}\n")
    given = ["--model-path", str(READER), "--out", str(folder / "out"), "--held-out", "1"]
    options = parser().parse_args([*given, "--data", str(path)])
    check(options, config, prompter)
    assert options.context_length == expected


def test_good_rows(checked: Callable, folder: Path) -> None:
    text = {"prompt": "Hello.", "answer": "Not read.", "task": "none"}
    job = checked([GOOD, "", text, GOOD])
    assert [number for number, _ in job.prompts] == [1, 3, 4]
    assert job.dtype == {"cpu": "float32", "cuda": "bfloat16"}[job.device]
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Input data was truncated"),
        (GOOD | {"image": "99.png"}, "line 2: picture .*99.png cannot be read: No such file"),
        (GOOD | {"image": "short.png"}, "line 2: picture .*short.png cannot be decoded"),
        (GOOD | {"image": "https://host/x.png"}, "line 2: .*addresses are not fetched here"),
        (GOOD | {"image": "thin.png"}, "line 2: .*aspect ratio"),
        (GOOD | {"prompt": "<|image_pad|> a"}, "line 2: the prompt has 2 image places for 1"),
        ({"prompt": "<|image_pad|> a"}, "line 2: the prompt has 1 image places for 0"),
        (
            {"prompt": "abc " * LONGEST},
            r"line 2: \d+ prompt tokens and --max-new-tokens 256 exceed",
        ),
    ],
)
def test_a_bad_row_is_named(checked: Callable, folder: Path, line: object, message: str) -> None:
    whole = (folder / GOOD["image"]).read_bytes()
    (folder / "short.png").write_bytes(whole[: len(whole) // 2])
    Image.new("RGB", (1000, 2)).save(folder / "thin.png")
    with pytest.raises(InputError, match=message):
        checked([GOOD, line, GOOD])


def test_many_bad_rows_are_counted(checked: Callable) -> None:
    with pytest.raises(InputError) as caught:
        checked([GOOD | {"image": f"{i}.png"} for i in range(13)])
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 3 more"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--taps", f"0,{LAYERS - 1}"], rf"--taps: .*ids: got .* in \[0, {LAYERS - 2}\]"),
        (["--taps", "2,1"], "ascending"),
        (["--block", "1"], "--block: got 1, expected at least 2"),
        (["--held-out", "2"], "--held-out 2 leaves none of 2 rows"),
        (["--micro-rows", "17"], "--micro-rows: got 17, expected 1 to 16"),
        (["--past-block", "1.5"], "--past-block: got 1.5, expected 0 to 1"),
        (["--lr", "0"], "--lr: got 0.0, expected a number above 0"),
        (
            ["--context-length", f"{LONGEST + 1}"],
            f"got {LONGEST + 1}, the target ends at {LONGEST}",
        ),
        (["--context-length", "260"], r"line 1: \d+ prompt tokens and --max-new-tokens 256 exceed"),
        (["--rows", "rows.jsonl", "--data", "data.jsonl"], "one of them"),
    ],
)
def test_a_bad_option_is_named(checked: Callable, options: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked([GOOD, GOOD], *options)


def test_a_gpu_that_is_not_there(checked: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert checked([GOOD, GOOD]).device == "cpu"
    with pytest.raises(InputError, match="--device cuda: torch sees none"):
        checked([GOOD, GOOD], "--device", "cuda")


def test_the_head_names_the_target_that_it_is_trained_for(checked: Callable) -> None:
    assert trained_target(checked([GOOD, GOOD]).config) == fingerprint(READER)


def test_an_initial_head(checked: Callable, tmp_path: Path) -> None:
    job = checked([GOOD, GOOD], "--init", str(HEAD))
    theirs = json.loads((HEAD / "config.json").read_text())
    assert job.config == theirs

    for changes, message in [
        ({"mask_token_id": VOCAB}, "--init: .*mask_token_id"),
        ({"num_target_layers": 28}, "--init: .*num_target_layers.*got 28"),
        ({"target_layer_ids": [0, 1]}, "--init: tensor 'fc.weight' .* has shape"),
    ]:
        head = broken_head(HEAD, tmp_path / str(len(message)), **changes)
        with pytest.raises(InputError, match=message):
            checked([GOOD, GOOD], "--init", str(head))
    with pytest.raises(InputError, match="--block, --taps: the head of --init has its own"):
        checked([GOOD, GOOD], "--init", str(HEAD), "--block", "8", "--taps", "1,2")
    with pytest.raises(InputError, match=r"--init: .*config.json cannot be read"):
        checked([GOOD, GOOD], "--init", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", VOCAB + 1, f"--init: .*vocab_size: got {VOCAB + 1}, expected {VOCAB}"),
        ("hidden_size", 128, "--init: .*hidden_size"),
        ("attention_bias", True, "sets attention_bias"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "sets rope_scaling"),
    ],
)
def test_an_initial_head_of_another_kind(
    checked: Callable, tmp_path: Path, key: str, value: object, message: str
) -> None:
    head = broken_head(HEAD, tmp_path / "head")
    path = head / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=message):
        checked([GOOD, GOOD], "--init", str(head))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompt": 7}, r"line 2: num_prompt is 7, the target's processor counts \d\d"),
        ({"ids": [5, VOCAB]}, f"line 2: token {VOCAB} of ids is outside the vocabulary of {VOCAB}"),
        ({"ids": [5] * 4096}, r"line 2: \d+ prompt tokens and 4096 of the answer exceed"),
        ({"image": "99.png"}, "line 2: picture .*99.png cannot be read"),
    ],
)
def test_a_bad_generated_row(
    checked: Callable, folder: Path, row: Row, changes: dict, message: str
) -> None:
    rows = [row, msgspec.structs.replace(row, **changes)]
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    with pytest.raises(InputError, match=message):
        checked([], "--rows", str(path))


@pytest.mark.parametrize("token", [IMAGE, VIDEO])
def test_an_answer_ends_before_a_picture_s_token(
    folder: Path, row: Row, prompter: Prompter, token: int
) -> None:
    """A random target may write one; transformers would ask for the picture."""
    path = folder / "rows.jsonl"
    rows = [msgspec.structs.replace(row, ids=ids) for ids in ([7, 8, token, 9], [7, token, 8])]
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))
    options = parser().parse_args(["--model-path", str(READER), "--out", str(folder / "out")])
    options.context_length = 4096
    (kept,) = check_rows(path, options, prompter, VOCAB)
    assert kept.ids == [7, 8]


def test_answers_too_short_to_learn_from(folder: Path, row: Row, prompter: Prompter) -> None:
    path = folder / "rows.jsonl"
    given = ["--model-path", "", "--out", "", "--context-length", "4096"]
    options = parser().parse_args(given)
    short = msgspec.structs.replace(row, ids=ANSWER[:1])
    path.write_bytes(msgspec.json.encode(short) + b"\n" + msgspec.json.encode(row) + b"\n")
    (kept,) = check_rows(path, options, prompter, VOCAB)
    assert kept == msgspec.structs.replace(row, image=str(folder / row.image))
    path.write_bytes(msgspec.json.encode(short) + b"\n")
    with pytest.raises(InputError, match="every answer has fewer than two tokens"):
        check_rows(path, options, prompter, VOCAB)


def test_what_is_left_to_generate(folder: Path) -> None:
    """Rows of every shape are known again, whatever their task is called by now."""
    data, out = folder / "data.jsonl", folder / "out" / "rows.jsonl"
    out.parent.mkdir()
    image = str(folder / "x.png")
    turns = [Message("user", [Picture(image), Text("d")])]
    prompts = [
        (1, Prompt(prompt="a", image=image, task="renamed")),
        (3, Prompt(prompt="b")),
        (4, Prompt(prompt="c")),
        (5, Prompt(messages=turns)),
    ]
    assert missing(prompts, data, out) == prompts
    old = '{"number": 1, "prompt": "a", "image": "../x.png", '
    text = (
        old + '"num_prompt": 9, "ids": [1, 2], "text": ""}\n'
        '{"number": 4, "prompt": "c", "image": null, "num_prompt": 9, "ids": [1, 2], "text": ""}\n'
    ).encode()
    row = Row(**kept(prompts[3][1], out.parent), number=5, num_prompt=9, ids=[1, 2], text="")
    assert row.pictures == ["../x.png"]
    text += msgspec.json.encode(row) + b"\n"
    out.write_bytes(text + b'{"number": 3, "pro')
    assert missing(prompts, data, out) == [(3, Prompt(prompt="b"))]
    assert out.read_bytes() == text
    for number, other in [(1, Prompt(prompt="another", image=image)), (5, Prompt(prompt="d"))]:
        with pytest.raises(InputError, match=f"answers line {number} of another --data"):
            missing([*(p for p in prompts if p[0] != number), (number, other)], data, out)


def test_the_command_says_what_it_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "data.jsonl"
    path.write_text(json.dumps(GOOD | {"image": "no.png"}) + "\n")
    out = folder / "out"
    given = ["--model-path", str(READER), "--data", str(path), "--out", str(out)]
    assert run("train", given) == 2
    assert f"{path}, line 1: picture {folder / 'no.png'} cannot be read" in capsys.readouterr().err
    assert not out.exists()
    assert run("train", ["--model-path", str(folder), "--data", str(path), "--out", str(out)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_another_kind_of_target(tmp_path: Path) -> None:
    config = json.loads((READER / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="got a Qwen3ForCausalLM, expected one of Qwen3VL"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("num_layers", "taps"),
    [
        (36, [1, 9, 17, 25, 33]),
        (28, [1, 7, 13, 19, 25]),
        (6, [0, 1, 2, 3, 4]),
        (8, [1, 2, 3, 4, 5]),
        (3, [0, 1]),
    ],
)
def test_default_taps(num_layers: int, taps: list[int]) -> None:
    assert default_taps(num_layers) == taps


def test_a_new_heads_config_is_one_that_serves(prompter: Prompter, target: object) -> None:
    text = target.get_text_config()
    mask = mask_token(prompter.tokenizer, text.vocab_size)
    config = head_config(text, [0, 2, 4], 8, 2, mask)
    shipped = json.loads((HEAD / "config.json").read_text())
    assert {*config, "glance_config"} == set(shipped)  # that names the target; `check` adds it
    assert "mrope_section" not in json.dumps(config)
    parsed = parse_head(config, TEXT)
    assert (parsed.taps, parsed.block, parsed.mask_token_id) == ((0, 2, 4), 8, mask[1])
    assert prompter.tokenizer.convert_tokens_to_ids(mask[0]) == mask[1]


def test_a_tokenizer_without_a_mask(prompter: Prompter) -> None:
    class Plain:
        def get_vocab(self) -> dict:
            return {}

        def __len__(self) -> int:
            return 500

    assert mask_token(Plain(), 512) == ("<|MASK|>", 500)
    assert mask_token(Plain(), 500) is None
