"""Trains the reader on the five tasks and measures it; run again, training goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sglang.glance.cli.files import check_folder
from sglang.glance.cli.options import Parser
from sglang.glance.shipped import READER


def _parser() -> argparse.ArgumentParser:
    parser = Parser("reader", __doc__)
    parser.add_argument("folder", type=Path, help="checkpoint.pt, and reader/ as it is served")
    parser.add_argument("--init", type=Path, default=READER, help="a reader to start from")
    parser.add_argument("--steps", type=int, default=12000, help="steps in all (12000)")
    parser.add_argument(
        "--tower-steps",
        type=int,
        default=0,
        help="the first of them, in which the vision tower alone learns what it sees: a third of "
        "the time each (0)",
    )
    parser.add_argument(
        "--factor", type=float, default=1.0, help="multiplies the learning rates from here on (1)"
    )
    parser.add_argument("--batch", type=int, default=16, help="samples a step (16)")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="stop after so long, to go on later"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--scores",
        type=int,
        metavar="N",
        help="instead of training, ask FOLDER/reader about N held-out pictures a task, and write "
        "its model card",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if not (args.init / "config.json").exists():
        parser.error(f"--init: got {args.init}, which holds no config.json; expected a reader")
    check_folder("folder", args.folder)
    if args.scores:
        from sglang.glance.cli.terminal import output

        from .card import write_card
        from .measure import measure, show

        reader = args.folder / "reader"
        scores = measure(reader, args.folder / "scores", args.scores)
        write_card(reader, args.folder / "checkpoint.pt", args.batch, scores)
        show(scores, output())
        return 0
    import torch
    from sglang.glance.cli.progress import bar
    from sglang.glance.cli.terminal import messages
    from sglang.glance.measure.provenance import describe

    from .loop import Progress, Training

    torch.set_num_threads(args.threads)
    args.folder.mkdir(parents=True, exist_ok=True)
    training = Training(
        args.folder,
        args.init,
        args.steps,
        args.batch,
        tower_steps=args.tower_steps,
        factor=args.factor,
        compile=True,
    )
    training.progress.runs.append((training.progress.step, describe([]).shown_command))
    left = max(args.steps - training.progress.step, 0)
    with bar(messages(), "training", left) as advance:

        def tell(progress: Progress) -> None:
            recent = progress.losses[-20:]
            advance(1, f"loss {sum(recent) / len(recent):.4f} nats/token")

        training.run(300.0, args.minutes, tell)
    print(args.folder / "reader")
    return 0
