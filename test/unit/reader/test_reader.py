"""Training the reader: what a row holds, that its questions do not see each other, and going on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from sglang.glance.reader import build, cli, data, loop
from sglang.glance.shipped import READER
from sglang.glance.tasks import make

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def started():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "TEXTS_A_TASK", 20)
        yield build.built(READER)


@pytest.fixture(scope="module")
def rows(started) -> list[data.Row]:
    return [data.row(index, started[1]) for index in range(3)]


def test_what_is_to_be_read_stays_one_token_a_character(started) -> None:
    tokenizer = started[1].tokenizer
    for text in ("TEMPLE", "4B7Q", "18.20"):
        told = tokenizer.tokenize(f" {text}")
        assert "".join(told).lstrip("Ġ") == text
        assert len(told) >= len(text)
    words = tokenizer.tokenize(make("caption", "train", 0).answer)
    assert len(words) < 0.5 * len(make("caption", "train", 0).answer)


def test_the_new_tokenizer_keeps_the_models_knowledge(started) -> None:
    """A token that the old one had has its row; so has the picture's."""
    model, processor = started
    old_model, old = build.loaded(READER)
    ours, theirs = (m.get_input_embeddings().weight for m in (model, old_model))
    for token in ("A", "7", "<|image_pad|>", "<|im_end|>", "Ġthe"):
        new_id = processor.tokenizer.convert_tokens_to_ids(token)
        assert torch.equal(ours[new_id], theirs[old.tokenizer.convert_tokens_to_ids(token)])
    assert ours.shape[0] == build.VOCAB == model.config.text_config.vocab_size
    ids = processor.tokenizer.convert_tokens_to_ids
    assert model.config.image_token_id == ids("<|image_pad|>")
    assert model.generation_config.eos_token_id == ids("<|im_end|>")


@torch.no_grad()
def test_new_vision_layers_add_nothing_yet(started, rows) -> None:
    model, _ = started
    visual = model.model.visual
    assert len(visual.blocks) == build.VISION_LAYERS == model.config.vision_config.depth
    deep = visual(rows[0].pixels, rows[0].grid[None]).pooler_output
    shallow, _ = build.loaded(READER)
    known = shallow.model.visual(rows[0].pixels, rows[0].grid[None]).pooler_output
    torch.testing.assert_close(deep, known)


def test_a_row_is_a_picture_and_its_questions(started, rows) -> None:
    tokenizer = started[1].tokenizer
    for index, row in enumerate(rows):
        assert len(row.branches) in data.QUESTIONS.values()
        assert tokenizer.decode(row.head).count("<|image_pad|>") == row.grid.prod() // 4
        for tokens, asked in row.branches:
            text = tokenizer.decode(tokens)
            assert text.endswith("<|im_end|>")
            assert tokenizer.decode(tokens[:asked]).endswith("assistant\n")
        assert len(row) == len(data.row(index, started[1]))


@torch.no_grad()
def test_questions_of_a_row_do_not_see_each_other(started, rows) -> None:
    """Packed and padded, each has the states that it has alone in the stock forward pass."""
    model, processor = started
    pad = processor.tokenizer.pad_token_id
    packed = loop.states(model, data.collated(rows, pad))
    for number, row in enumerate(rows):
        at = len(row.head)
        for tokens, _ in row.branches:
            ids = torch.tensor([row.head + tokens])
            alone = model.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=row.pixels,
                image_grid_thw=row.grid[None],
                mm_token_type_ids=(ids == model.config.image_token_id).int(),
                use_cache=False,
            )[0]
            got = packed[number, at : at + len(tokens)]
            torch.testing.assert_close(got, alone[0, -len(tokens) :], rtol=1e-4, atol=1e-4)
            at += len(tokens)


def test_only_answers_have_labels(rows) -> None:
    batch = data.collated(rows, 0)
    for number, row in enumerate(rows):
        answers = [tokens[asked:] for tokens, asked in row.branches]
        told = batch.labels[number]
        assert told[told != data.IGNORED].tolist() == list(itertools.chain(*answers))
        weights = batch.weights[number][told != data.IGNORED].tolist()
        share = 1 / sum(len(each.branches) for each in rows)
        wanted = [share / len(answer) for answer in answers for _ in answer]
        assert weights == pytest.approx(wanted)
    assert batch.weights.sum().item() == pytest.approx(1)


def untrained(folder: Path) -> Path:
    """The shipped reader with its matrices drawn anew."""
    model, processor = build.loaded(READER)
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)
    build.saved(model, processor, folder)
    return folder


def test_training_lowers_the_loss_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is that of the first pictures, before and after."""
    init = untrained(tmp_path / "init")
    monkeypatch.setattr(build, "TEXTS_A_TASK", 20)
    monkeypatch.setattr(data, "POOL", 1)
    monkeypatch.setattr(loop, "WARM_UP", 2)
    seen: list[int] = []
    losses: list[float] = []

    def tell(progress: loop.Progress) -> None:
        seen.append(progress.step)

    for steps in (2, 4):
        training = loop.Training(tmp_path, init, steps, 1)
        first = data.collated([data.row(n, training.processor) for n in range(steps)], 0)
        with torch.no_grad():
            losses.append(loop.answer_loss(training.model, first).item())
        training.run(1e9, 1e9, tell)
    assert seen == [1, 2, 3, 4]
    assert len(training.progress.losses) == 4
    assert losses[1] < losses[0]
    again = loop.Training(tmp_path, init, 4, 1)
    ours, kept = (dict(each.model.named_parameters()) for each in (training, again))
    assert all(torch.equal(ours[name], kept[name]) for name in ours)
    assert set(again.rates) == {loop.MATRIX_LR, loop.OTHER_LR}
    model, _ = build.loaded(tmp_path / "reader")
    saved = dict(model.named_parameters())
    for name in ours:
        torch.testing.assert_close(saved[name], ours[name].bfloat16().float())


def test_the_tower_learns_alone_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TEXTS_A_TASK", 20)
    monkeypatch.setattr(data, "POOL", 1)
    training = loop.Training(tmp_path, READER, 2, 1, tower_steps=1)
    before = {name: weight.clone() for name, weight in training.model.named_parameters()}

    def moved() -> set[str]:
        now = training.model.named_parameters()
        return {name for name, weight in now if not torch.equal(weight, before[name])}

    batch = data.collated([data.row(0, training.processor)], 0)
    training.step(batch)
    assert moved() and all(name.startswith("model.visual.") for name in moved())
    training.progress.step = 1
    training.step(batch)
    assert any(name.startswith("model.language_model.") for name in moved())


def test_a_folder_without_a_reader_is_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main([str(tmp_path / "out"), "--init", str(tmp_path)])
    assert "config.json" in capsys.readouterr().err
