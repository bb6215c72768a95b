"""Rows of every shape, what is refused by line, and how both endpoints are asked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from builders.pictures import form
from builders.prompts import chat as written_out
from builders.prompts import picture_prompts
from builders.qwen25vl import random_qwen25vl
from builders.rows import KINDS, write_rows
from sglang.glance.measure.provenance import describe
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import (
    InputError,
    Message,
    Picture,
    Prompt,
    Text,
    chat,
    files,
    load_numbered,
    load_prompts,
    moved,
    without_pictures,
)
from sglang.glance.serving.client import image_url
from sglang.glance.shipped import PICTURES, READER
from sglang.glance.train.data import Row, data_hash, kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_rows(folder)
    return folder


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(READER)


def rows(path: Path, **how: object) -> list[Prompt]:
    return load_prompts(path, **how)


def test_a_folder_or_its_file(folder: Path) -> None:
    numbered = load_numbered(folder)
    assert numbered == load_numbered(folder / "prompts.jsonl")
    assert [number for number, _ in numbered] == list(range(1, 2 * len(numbered), 2))
    found = [row for _, row in numbered]
    assert [row.pictures for row in found[:7]] == [[str(folder / name)] for name in KINDS]
    assert [row.group for row in found[:2]] == ["caption", "-"]
    two, coded, text, turns, addressed = found[7:]
    assert two.pictures == [str(folder / "photo.jpg"), str(folder / "plain.png")]
    assert coded.pictures[0].startswith("data:image/jpeg") and text.pictures == []
    assert [turn.role for turn in turns.turns] == ["system", "user", "assistant", "user"]
    assert turns.pictures == [str(folder / "scan.tiff")]
    assert addressed.pictures[0] == str(folder / "web.webp")
    assert addressed.pictures[1].startswith("data:image/png")


def test_the_shipped_template_gives_the_known_text(prompter: Prompter) -> None:
    for count in range(3):
        prompt = Prompt(prompt="Read all\nlines. ", images=["a.png"] * count)
        assert prompter.text(prompt) == written_out(prompt.prompt, count)
    for known, row in zip(picture_prompts(PICTURES), rows(PICTURES), strict=True):
        assert prompter.request(row) == {k: known[k] for k in ("text", "images", "task")}


def test_turns_in_the_shipped_template(folder: Path, prompter: Prompter) -> None:
    *_, turns, addressed = rows(folder)
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    assert prompter.text(turns) == (
        "<|im_start|>system\nAnswer in one line.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
        f"<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n{picture}Read all lines."
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert f"<|im_start|>user\nCompare{picture}{picture}<|im_end|>" in prompter.text(addressed)
    assert picture not in prompter.text(without_pictures(addressed))


def test_another_targets_own_template(folder: Path, prompter: Prompter, tmp_path: Path) -> None:
    qwen = random_qwen25vl(READER, tmp_path / "qwen")
    template = qwen / "chat_template.jinja"
    template.write_text("HEAD {% for m in messages %}[{{ m.role }}]{% endfor %}")
    assert Prompter(qwen).text(rows(folder)[10]) == "HEAD [system][user][assistant][user]"
    with pytest.raises(InputError, match=r"--model-path: .* has no config.json"):
        Prompter(tmp_path)


def test_counted_as_the_processor_counts(folder: Path, prompter: Prompter) -> None:
    for row in rows(folder):
        assert prompter.count(row) == prompter.inputs(row, [])["input_ids"].shape[1]


def test_messages_for_the_chat_endpoint(folder: Path) -> None:
    for row in rows(folder):
        turns = chat(row, image_url)
        assert [turn["role"] for turn in turns] == [turn.role for turn in row.turns]
        parts = [
            part for turn in turns if isinstance(turn["content"], list) for part in turn["content"]
        ]
        sent = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        assert len(sent) == len(row.pictures)
        assert all(url.startswith("data:image/png;base64,") for url in sent)
    sent = chat(Prompt(prompt="a", image="https://host/b.jpg"), image_url)
    assert sent[0]["content"][0]["image_url"]["url"] == "https://host/b.jpg"


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Input data was truncated"),
        ("[1]", "Expected `object`, got `array`"),
        ({"image": "plain.png"}, "expected `prompt` .* or `messages` .*, one of them"),
        ({"prompt": "a", "messages": [USER]}, "one of them"),
        ({"prompt": 7}, r"Expected `str \| null`, got `int` - at `\$\.prompt`"),
        ({"prompt": " \n"}, "`prompt` is empty"),
        ({"prompt": "a", "image": "plain.png", "images": []}, "not both"),
        ({"prompt": "a", "images": "plain.png"}, r"Expected `array \| null`.*images"),
        ({"prompt": "a", "images": [3]}, r"Expected `str`, got `int` - at `\$\.images\[0\]`"),
        ({"prompt": "a", "image": "gone.png"}, "picture .*gone.png cannot be read"),
        (
            {"prompt": "a", "image": "prompts.jsonl"},
            "picture .*prompts.jsonl is of no kind that PIL reads",
        ),
        ({"prompt": "a <image>", "image": "plain.png"}, "the text holds '<image>'"),
        ({"prompt": "a", "task": 3}, r"got `int` - at `\$\.task`"),
        ({"prompt": "a", "task": "all"}, "`task` is 'all'"),
        ({"messages": []}, "the last of `messages` must be the user's"),
        ({"messages": [USER, {"role": "assistant", "content": "b"}]}, "must be the user's"),
        ({"messages": [USER], "image": "plain.png"}, "pictures are parts"),
        ({"messages": [{"role": "user", "content": []}]}, r"`messages\[0\]` is empty"),
        ({"messages": [USER, {"role": "system", "content": "b"}, USER]}, "must be the first"),
        ({"messages": [{"role": "tool", "content": "b"}]}, "Invalid enum value 'tool'"),
        ({"messages": [USER | {"tool_calls": []}]}, "unknown field `tool_calls`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video", "video": "a"}]}]},
            r"Invalid value 'video' - at `\$\.messages\[0\]\.content\[0\]\.type`",
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "image", "image": "plain.png"}]},
                    USER,
                ]
            },
            "only the user may send pictures",
        ),
    ],
)
def test_a_bad_line_is_named(folder: Path, line: object, said: str) -> None:
    path = folder / "bad.jsonl"
    bad = line if isinstance(line, str) else json.dumps(line)
    path.write_text('{"prompt": "fine"}\n\n' + bad)
    with pytest.raises(InputError, match=f"bad.jsonl, line 3: .*{said}"):
        load_prompts(path)


def test_all_faults_are_listed_together(folder: Path) -> None:
    """Of every kind in one list: ten, and how many more there are."""
    path = folder / "bad.jsonl"
    lines = ["{", '{"prompt": ""}', '{"prompt": "a", "image": "gone.png"}', '{"prompt": "a"}']
    path.write_text("\n".join(lines * 4))
    with pytest.raises(InputError) as caught:
        load_prompts(path)
    said = str(caught.value).splitlines()
    assert len(said) == 11 and said[-1] == "... and 2 more"
    assert [line.split(": ")[0].rsplit(" ", 1)[1] for line in said[:4]] == ["1", "2", "3", "5"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone.jsonl cannot be read: No such file.*JSONL file, or"):
        load_prompts(tmp_path / "gone.jsonl")
    with pytest.raises(InputError, match=r"prompts.jsonl cannot be read"):
        load_prompts(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no rows"):
        load_prompts(tmp_path)


def test_addresses_only_where_they_are_sent_on(folder: Path, prompter: Prompter) -> None:
    path = folder / "far.jsonl"
    path.write_text('{"prompt": "a", "image": "https://host/b.jpg"}')
    assert rows(path)[0].pictures == ["https://host/b.jpg"]
    with pytest.raises(InputError, match="addresses are not fetched here"):
        load_prompts(path, prompter.count)


def test_rows_name_their_pictures_from_anywhere(folder: Path, tmp_path: Path) -> None:
    """Written beside other files and read again, they are the same, and so is their hash."""
    about = {"number": 1, "num_prompt": 9, "ids": [1, 2], "text": ""}
    given = rows(folder)
    path = tmp_path / "deeper" / "rows.jsonl"
    path.parent.mkdir()
    made = [Row(**kept(row, path.parent), **about) for row in given]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, made)))
    again = rows(path, kind=Row)
    assert again[0].pictures[0] != given[0].pictures[0]
    resolved = [moved(row, lambda name: str(Path(name).resolve())) for row in again]
    whole = [moved(row, lambda name: str(Path(name).resolve())) for row in given]
    assert [row.turns for row in resolved] == [row.turns for row in whole]
    there = [Row(**msgspec.structs.asdict(row), **about) for row in given]
    assert data_hash(again) == data_hash(there) != data_hash(again[1:])


def test_the_hash_in_model_cards(tmp_path: Path) -> None:
    """Of rows with a prompt and at most one picture it stays what it was."""
    path = tmp_path / "a.jpg"
    form(1).save(path)
    about = {"number": 1, "num_prompt": 9, "ids": [1, 2], "text": ""}
    rows = [Row(prompt="a", image=str(path), **about), Row(prompt="b", **about)]
    told = b'["a",[1,2]]' + path.read_bytes() + b'["b",[1,2]]'
    assert data_hash(rows) == hashlib.sha256(told).hexdigest()


def test_the_digest_is_of_rows_and_pictures(folder: Path, tmp_path: Path) -> None:
    form(1).save(tmp_path / "a.png")
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a", "image": "a.png"}')
    parts = files(path, rows(path))
    assert parts == [path, tmp_path / "a.png"]
    first = describe(parts).data
    form(2).save(tmp_path / "a.png")
    assert describe(parts).data != first
    assert files(folder, rows(folder)) == [folder]


def test_text_only_states_lose_the_pictures_alone() -> None:
    turns = [Message("user", [Picture("a.png"), Text("b")]), Message("assistant", "c")]
    bare = without_pictures(Prompt(messages=turns))
    assert [turn.content for turn in bare.turns] == [[Text("b")], [Text("c")]]
