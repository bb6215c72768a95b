"""The steps of ``train`` one after another."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from functools import partial
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from sglang.glance.cli.progress import bar, waiting
from sglang.glance.cli.terminal import note, paste
from sglang.glance.measure.provenance import describe
from sglang.glance.prompts.prompter import Prompter
from sglang.glance.prompts.rows import InputError, without_pictures
from sglang.glance.serving.flags import compute_threads, serving, shell_line
from sglang.glance.serving.server import starting, wait_until_up
from sglang.glance.train.card import Card, write_card
from sglang.glance.train.check import Job, check, check_held_out, check_rows
from sglang.glance.train.data import Row, data_hash
from sglang.glance.train.generate import generate, missing
from sglang.glance.train.head import round_to_bfloat16
from sglang.glance.train.kinds import KINDS, RECIPE
from sglang.glance.train.loop import Entry, Plan, Trainer
from sglang.glance.train.loss import Vocabulary
from sglang.glance.train.measure import Accepted, chain_accept
from sglang.glance.train.taps import CacheKey, Tap, TapCache
from sglang.glance.train.target import Target, read_config
from torch import nn


def run(options: argparse.Namespace, console: Console) -> Path:
    """Returns the folder of the finished head."""
    config, prompter = read_config(options.model_path), Prompter(options.model_path)
    vocab_size = config.get_text_config().vocab_size
    with console.status("checking rows and options"):
        job = check(options, config, prompter)
    if job.device == "cpu":
        torch.set_num_threads(int((compute_threads() | os.environ)["OMP_NUM_THREADS"]))
    num_rows = len(job.prompts) + len(job.rows)
    console.print(f"{num_rows} rows are in order; {job.device}, {job.dtype}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows_path = options.rows or answer(options, job, prompter, console)
    rows = job.rows or check_rows(rows_path, options, prompter, vocab_size)
    if len(rows) < num_rows:
        console.print(f"{num_rows - len(rows)} answers are left out: no two tokens of text")
        check_held_out(options, len(rows))
    digest = data_hash(rows)
    kind = KINDS[options.algorithm]
    taps = kind.taps(job.config)
    target = Target(options.model_path, prompter, taps, job.device, getattr(torch, job.dtype))
    vocabulary = target.vocabulary(getattr(torch, job.dtype))
    source = states(options, job, target, rows, digest, console)
    if not options.no_cache:
        del target
    held, kept = split(len(rows), options.held_out, options.seed)
    head, trainer, log = train(options, job, vocabulary, source, held, kept, digest, console)
    round_to_bfloat16(head)
    held_out = chain_accept(partial(kind.drafts, head, vocabulary), map(source, held))
    return export(options, job, head, trainer.plan, log, held_out, digest, console)


def answer(options: argparse.Namespace, job: Job, prompter: Prompter, console: Console) -> Path:
    """``rows.jsonl`` with an answer for every prompt."""
    out = options.out / "rows.jsonl"
    left = missing(job.prompts, options.data, out)
    if not left:
        return out
    log, flags = options.out / "server.log", ("--dtype", job.dtype)
    size = {"device": job.device, "context": options.context_length}
    with starting(options.model_path, log, *flags, **size) as server:
        with waiting(console, "starting a server of the target"):
            wait_until_up(server)
        with bar(console, "answers", len(left)) as advance:
            generate(
                server,
                left,
                out,
                prompter.request,
                job.device,
                options.max_new_tokens,
                advance,
            )
    return out


def states(
    options: argparse.Namespace,
    job: Job,
    target: Target,
    rows: list[Row],
    digest: str,
    console: Console,
) -> Tap:
    """Where training gets a row's states from: the target itself, or all of them on disk."""

    def tap(index: int):
        row = rows[index]
        if options.text_only_states:
            return target.tapped(without_pictures(row), row.ids, None)
        return target.tapped(row, row.ids, row.num_prompt)

    if options.no_cache:
        return tap
    taps = target.taps
    num_tokens = sum(row.num_prompt + len(row.ids) - 1 for row in rows)
    needed = num_tokens * len(taps) * job.config["hidden_size"] * 2
    shown = f"{options.model_path.resolve()}{', no pictures' if options.text_only_states else ''}"
    key = CacheKey(shown, job.dtype, taps, digest)
    cache = TapCache(options.out / "taps", len(rows), key)
    if not cache.num_missing:
        return cache
    free = shutil.disk_usage(options.out).free
    if needed * cache.num_missing / len(rows) > free:
        raise InputError(
            f"the target's states need {needed / 2**30:.1f} GiB on disk and {free / 2**30:.1f} are "
            "free: use fewer rows or smaller pictures, or --no-cache"
        )
    console.print(f"the target's states: {needed / 2**30:.2f} GiB in {cache.folder}")
    with bar(console, "states", cache.num_missing) as advance:
        cache.fill(tap, advance)
    return cache


def split(num_rows: int, num_held: int, seed: int) -> tuple[list[int], list[int]]:
    """Held-out rows and the others, both ascending."""
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(order[:num_held]), sorted(order[num_held:])


def train(
    options: argparse.Namespace,
    job: Job,
    vocabulary: Vocabulary,
    source: Tap,
    held: list[int],
    kept: list[int],
    digest: str,
    console: Console,
) -> tuple[nn.Module, Trainer, list[Entry]]:
    kind = KINDS[options.algorithm]
    head = kind.head(options, job.config, vocabulary).to(job.device)
    recipe = {"algorithm": options.algorithm, "text_only_states": options.text_only_states}
    if options.algorithm == "GLANCE":
        recipe |= {name: getattr(options, name) for name in RECIPE}
    plan = Plan(
        recipe={**recipe, "head": json.dumps(job.config), "init": str(options.init or "")},
        rows_hash=digest,
        num_rows=len(kept),
        steps=math.ceil(options.epochs * len(kept) / options.batch_rows),
        batch_rows=options.batch_rows,
        micro_rows=options.micro_rows or options.batch_rows,
        lr=options.lr,
        seed=options.seed,
        bf16=job.dtype == "bfloat16",
        save_every=options.save_every,
    )
    objective = kind.objective(head, vocabulary, options)
    drafts = partial(kind.drafts, head, vocabulary)
    trainer = Trainer(objective, lambda index: source(kept[index]), plan, options.out)
    with bar(console, "training", plan.steps - trainer.step) as advance:
        log = trainer.run(
            lambda entry: advance(1, f"loss {entry.loss:.3f}"),
            lambda: chain_accept(drafts, map(source, held)).accept_len,
        )
    return head, trainer, log


def export(
    options: argparse.Namespace,
    job: Job,
    head: nn.Module,
    plan: Plan,
    log: list[Entry],
    held_out: Accepted,
    digest: str,
    console: Console,
) -> Path:
    out = options.out / "head"
    head.save(out, json.dumps(job.config, indent=2) + "\n")
    card = Card(
        target=options.model_path.name,
        num_parameters=sum(weight.numel() for weight in head.parameters()),
        plan=plan,
        held_out=held_out,
        provenance=msgspec.structs.replace(describe([]), data=digest),
    )
    write_card(out, card, log)
    note(
        console,
        f"{out}: accept length {held_out.accept_len:.2f} on {held_out.num_answers} held-out "
        "answers (chain). Serve it:",
    )
    paths = (options.model_path.resolve(), out.resolve())
    flags = serving(*paths, job.device, algorithm=options.algorithm, dtype=job.dtype)
    paste(console, shell_line(flags, job.device))
    return out
