"""Training sees what serving sees, and what it makes serves."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
import torch.nn.functional as F
from builders.floors import ACCEPT_LEN_TOY, ACCEPT_LEN_TOY_HELD_OUT, reached
from builders.pictures import encode, form, shapes
from harness import (
    HEAD,
    READER,
    Plain,
    Server,
    glance_flags,
    start,
    tokens_per_round,
)
from PIL import Image
from probing import Probe
from safetensors.torch import load_file
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import Message, Picture, Prompt, Text, load_numbered, load_prompts
from sglang.glance.serving.server import stop
from sglang.glance.train import main
from sglang.glance.train.blocks import Sampler, TappedRow, collate
from sglang.glance.train.data import Row
from sglang.glance.train.eagle3 import Eagle3Head
from sglang.glance.train.eagle3 import correct_drafts as eagle3_drafts
from sglang.glance.train.generate import generate
from sglang.glance.train.head import Head
from sglang.glance.train.loss import Vocabulary, run
from sglang.glance.train.measure import chain_accept, correct_drafts
from sglang.glance.train.taps import CacheKey, TapCache
from sglang.glance.train.target import Target

LONGEST = 48  # tokens of an answer
ROUNDING = 1e-4  # of a position's root mean square; 1e-5 was seen
TAPS = (0, 1, 2, 3, 4)
TINY = ("--layers", "1", "--block", "8", "--anchors", "6", "--held-out", "4", "--lr", "3e-3")


class Seen(NamedTuple):
    """One request. ``states [L, K * H]``: the target's as the head was given them; ``drafts``: a
    round's prefix length, candidates and their log-probabilities."""

    prompt: Prompt
    answer: list[int]
    num_prompt: int
    states: torch.Tensor
    drafts: list[dict[str, torch.Tensor]]


pytestmark = pytest.mark.usefixtures("one_thread")


def about(prompt: str, *images: Image.Image, kind: str = "PNG") -> Prompt:
    return Prompt(prompt=prompt, images=[encode(image, kind) for image in images])


CASES = {
    "document": about("Read all lines.", form(1)),
    "scaled down": about("Read all lines.", form(2, (700, 500))),
    "scaled up": about("Read all lines.", form(3, (40, 30))),
    "flat": about("Read all lines.", form(4, (256, 32))),
    "see-through": about("Describe the image.", shapes(30, mode="RGBA")),
    "palette": about("What is in the picture?", shapes(32, mode="P")),
    "grey": about("Describe the image.", shapes(31, mode="L")),
    "cmyk": about("Describe the image.", shapes(33, mode="CMYK"), kind="JPEG"),
    "two": about("Read all lines.", form(5), shapes(34, (64, 64))),
    "turns": Prompt(
        messages=[
            Message("system", "Answer in one line."),
            Message("user", [Text("Look:"), Picture(encode(form(6))), Text("What is it?")]),
            Message("assistant", "A form."),
            Message("user", [Picture(encode(form(7, (60, 90)))), Text("Read all lines.")]),
        ]
    ),
    "text": about("What is the Total?"),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(READER, Prompter(READER), TAPS, "cpu", torch.float32)


@pytest.fixture(scope="module")
def seen(probe: Probe) -> dict[str, Seen]:
    prompter = Prompter(READER)
    return {name: ask(probe, prompt, prompter.text(prompt)) for name, prompt in CASES.items()}


def ask(probe: Probe, prompt: Prompt, text: str) -> Seen:
    """Pictures are sent as they are: what SGLang makes of them is compared too."""
    probe.server.flush_cache()  # a cached prefix has no states of its own
    with probe.tensors() as kept:
        request = {"text": text, "images": prompt.pictures}
        answer = probe.server.generate(request, max_new_tokens=24, ignore_eos=True)
        passes, drafts = kept("states"), kept("drafts")
    positions = torch.cat([one["positions"] for one in passes])
    states = torch.cat([one["states"] for one in passes])
    num_prompt = answer.meta["prompt_tokens"]
    length = num_prompt + len(answer.ids) - 1
    assert torch.equal(positions[:length], torch.arange(length))
    return Seen(prompt, answer.ids, num_prompt, states[:length], drafts)


@pytest.mark.parametrize("case", CASES)
def test_training_taps_what_the_engine_captures(
    seen: dict[str, Seen], target: Target, case: str
) -> None:
    one = seen[case]
    inputs = target.prompter.inputs(one.prompt, one.answer)
    states = target.states(inputs)[:-1]
    assert states.shape == one.states.shape
    assert one.states.square().mean().sqrt() > 1
    gap = (states - one.states).abs().amax(-1) / one.states.square().mean(-1).sqrt()
    assert gap.max() < ROUNDING
    is_image = inputs["input_ids"][0][:-1] == target.prompter.image_id
    assert is_image.any() == bool(one.prompt.pictures)
    row = target.tapped(one.prompt, one.answer, one.num_prompt)
    assert torch.equal(row.taps, states.bfloat16())


def test_hidden_states_of_transformers_are_others(target: Target) -> None:
    """Which is why they are not used: tap 0 lacks DeepStack's addition, at image places alone."""
    inputs = target.prompter.inputs(CASES["document"], [40, 41])
    with torch.no_grad():
        theirs = target.model.model(**inputs, output_hidden_states=True).hidden_states
    gap = (target.states(inputs)[:, : theirs[1].shape[-1]] - theirs[1][0]).abs().amax(-1)
    is_image = inputs["input_ids"][0] == target.prompter.image_id
    assert (gap[is_image] > 0.5).any()
    assert (gap[~is_image] < 1e-4).all()


@pytest.mark.parametrize("case", ["document", "see-through", "text"])
def test_the_torch_head_is_the_served_head(
    seen: dict[str, Seen], target: Target, case: str
) -> None:
    """Every round's candidates and log-probabilities, from the engine's own states."""
    one = seen[case]
    head = Head(json.loads((HEAD / "config.json").read_text()))
    head.load(HEAD)
    vocabulary = target.vocabulary(torch.float32)
    prompt = target.prompter.inputs(one.prompt, one.answer)["input_ids"][0]
    row = TappedRow(prompt, one.num_prompt, one.states)
    assert len(one.drafts) > 3
    for draft in one.drafts:
        root = int(draft["prefix_lens"])
        if root < len(row.ids) - 1:
            logprobs = drafted(head, vocabulary, row, root)
            served = draft["logprobs"][0]
            got = logprobs.gather(-1, draft["ids"][0])
            torch.testing.assert_close(got, served, rtol=1e-4, atol=2e-4)
            torch.testing.assert_close(logprobs.topk(2).values, served, rtol=1e-4, atol=2e-4)


@torch.no_grad()
def drafted(head: Head, vocabulary: Vocabulary, row: TappedRow, root: int) -> torch.Tensor:
    sampler = Sampler(16, head.config["dflash_config"]["mask_token_id"], 0, 7.0, 0.0)
    roots = torch.tensor([root])
    batch = collate([row], [sampler.lay(row.ids, roots, torch.zeros_like(roots), 16)])
    return F.linear(run(head, vocabulary, batch)[0, 1:], vocabulary.lm_head).log_softmax(-1)


def write_prompts(folder: Path, count: int) -> Path:
    """Made-up forms and shapes with the questions the reader knows."""
    folder.mkdir()
    rows = []
    for number in range(count):
        picture, prompt = (
            (form(number), "Read all lines.")
            if number % 2
            else (shapes(number), "Describe the image.")
        )
        picture.convert("RGB").save(folder / f"{number}.png")
        rows.append({"image": f"{number}.png", "prompt": prompt})
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "loss.jsonl").read_text().splitlines()]


def served(server: Server, path: Path) -> float:
    """Tokens a round on the rows' own prompts; the tokens are those of the rows."""
    rows = load_prompts(path, kind=Row)
    requests = map(Prompter(READER).request, rows)
    answers = server.generate_all(list(requests), parallel=8, max_new_tokens=LONGEST)
    assert [answer.ids for answer in answers] == [row.ids for row in rows]
    return tokens_per_round(answers)


def offline(out: Path, target: Target, num_rows: int) -> float:
    """The accept length that the card states, of all rows."""
    config = json.loads((out / "head" / "config.json").read_text())
    head = Head(config)
    head.load(out / "head")
    key = msgspec.json.decode((out / "taps" / "key.json").read_bytes(), type=CacheKey)
    rows = map(TapCache(out / "taps", num_rows, key), range(num_rows))
    drafts = partial(correct_drafts, head, target.vocabulary(torch.float32))
    return chain_accept(drafts, rows).accept_len


def test_a_toy_head_learns_and_serves(
    plain: Plain, target: Target, tmp_path: Path, logs: Path
) -> None:
    """As a chain, with the accept length that was measured without a server."""
    data, out = write_prompts(tmp_path / "data", 36), tmp_path / "out"
    rows = answered(plain.server, data, tmp_path / "rows.jsonl")
    given = ["--model-path", str(READER), "--rows", str(rows), "--out", str(out), *TINY]
    assert main([*given, "--epochs", "20"]) == 0
    loss = losses(out)
    assert loss[-1] < 0.7 * loss[0]
    with start(READER, logs / "toy.log", *glance_flags(out / "head", topk=1)) as server:
        accept_len = served(server, rows)
    assert accept_len > ACCEPT_LEN_TOY
    assert accept_len == pytest.approx(offline(out, target, 36), rel=0.02)


@pytest.mark.slow
def test_a_toy_eagle3_head_learns_and_serves(
    plain: Plain, target: Target, tmp_path: Path, logs: Path
) -> None:
    """In upstream's EAGLE3, as a chain, with the accept length measured without a server."""
    data, out = write_prompts(tmp_path / "data", 36), tmp_path / "out"
    rows = answered(plain.server, data, tmp_path / "rows.jsonl")
    given = ["--model-path", str(READER), "--rows", str(rows), "--out", str(out)]
    given += ["--algorithm", "EAGLE3", "--block", "4", "--held-out", "4", "--lr", "3e-3"]
    assert main([*given, "--epochs", "20"]) == 0
    card = json.loads((out / "head" / "card.json").read_text())
    loss = losses(out)
    assert loss[-1] < 0.7 * loss[0]
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]
    flags += ["--speculative-draft-model-path", str(out / "head"), "--speculative-eagle-topk", "1"]
    flags += ["--speculative-num-draft-tokens", "4", "--dtype", "float32"]
    with start(READER, logs / "toy-eagle3.log", *flags) as server:
        accept_len = served(server, rows)
    head = Eagle3Head(json.loads((out / "head" / "config.json").read_text()))
    head.load_state_dict(load_file(out / "head" / "model.safetensors"))
    key = msgspec.json.decode((out / "taps" / "key.json").read_bytes(), type=CacheKey)
    tapped = map(TapCache(out / "taps", 36, key), range(36))
    drafts = partial(eagle3_drafts, head, target.vocabulary(torch.float32))
    held_out = reached("tokens a round, held out", card["held_out"]["accept_len"])
    assert held_out > ACCEPT_LEN_TOY_HELD_OUT
    assert accept_len > ACCEPT_LEN_TOY
    assert accept_len == pytest.approx(chain_accept(drafts, tapped).accept_len, rel=0.02)


def answered(server: Server, data: Path, out: Path) -> Path:
    request_of = Prompter(READER).request
    prompts = load_numbered(data)
    generate(server, prompts, out, request_of, "cpu", LONGEST, lambda done: None)
    return out


@pytest.mark.slow
def test_the_whole_command_interrupted_twice(tmp_path: Path, logs: Path) -> None:
    """While answers are generated and while it trains; then it serves, and starts another head."""
    data, out = write_prompts(tmp_path / "data", 100), tmp_path / "out"
    given = ["--model-path", str(READER), "--data", str(data), "--out", str(out), *TINY]
    given += ["--epochs", "25", "--save-every", "20", "--max-new-tokens", str(LONGEST)]
    rows, checkpoint = out / "rows.jsonl", out / "checkpoint.pt"
    assert interrupted(given, lambda: rows.exists() and rows.stat().st_size > 2000) == 130
    first = rows.read_text()
    assert 0 < first.count("\n") < 100
    assert interrupted(given, checkpoint.exists) == 130
    assert rows.read_text().startswith(first)
    assert rows.read_text().count("\n") == 100
    assert finished(given) == 0
    loss = losses(out)
    assert loss[-1] < 0.5 * loss[0]
    assert {path.name for path in (out / "head").iterdir()} == {
        "README.md", "card.json", "config.json", "loss.png", "model.safetensors",
    }  # fmt: skip
    with start(READER, logs / "whole.log", *glance_flags(out / "head")) as server:
        assert served(server, rows) > ACCEPT_LEN_TOY

    again = ["--model-path", str(READER), "--rows", str(rows), "--out", str(tmp_path / "again")]
    again += ["--init", str(out / "head"), "--held-out", "4", "--epochs", "3", "--lr", "1e-4"]
    again += ["--no-cache", "--micro-rows", "8"]
    assert finished(again) == 0
    assert losses(tmp_path / "again")[0] < 1.2 * loss[-1]


@contextlib.contextmanager
def command(given: Sequence[str]) -> Iterator[subprocess.Popen]:
    line = [sys.executable, "-m", "sglang.glance", "train", *given]
    process = subprocess.Popen(line, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            stop(process)


def finished(given: Sequence[str]) -> int:
    with command(given) as process:
        return process.wait()


def interrupted(given: Sequence[str], when: Callable[[], bool]) -> int:
    with command(given) as process:
        deadline = time.monotonic() + 240
        while not when() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        assert process.poll() is None, f"ended with {process.returncode} before it was interrupted"
        process.send_signal(signal.SIGINT)
        return process.wait(120)
