"""``glance train``: a GLANCE head for a target, from prompts and pictures.

The target answers every prompt (greedily, through an SGLang server), its states over prompt,
picture and answer are tapped where SGLang captures them, and a block-diffusion head in DFlash's
format is trained on them. OUT/head is ready to serve. Everything is checked before work starts; the
same command again continues where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang.glance.cli.files import check_folder
from sglang.glance.cli.options import Parser
from sglang.glance.cli.terminal import messages, note


def parser() -> argparse.ArgumentParser:
    out = Parser("train", __doc__)
    add = out.add_argument_group("what").add_argument
    add("--model-path", type=Path, required=True, help="the target: a dense Qwen3-VL or Qwen2.5-VL")
    add(
        "--data",
        type=Path,
        help="prompts: a JSONL file, or a folder that holds prompts.jsonl (docs/requests.md)",
    )
    add("--rows", type=Path, help="a finished rows.jsonl instead of --data: nothing is generated")
    add("--out", type=Path, required=True, help="folder for the head, the rows and the checkpoint")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of target and products; weights are float32 in training and bfloat16 in the head; "
        "default: bfloat16 on cuda, float32 on cpu",
    )
    add = out.add_argument_group("answers").add_argument
    add("--max-new-tokens", type=int, default=256, help="most tokens an answer has (%(default)s)")
    add(
        "--context-length",
        type=int,
        help="most tokens of prompt and answer (4096, or the target's own where that is less)",
    )
    add = out.add_argument_group("head").add_argument
    add(
        "--algorithm",
        choices=("GLANCE", "EAGLE3"),
        default="GLANCE",
        help="the kind of head (%(default)s); EAGLE3 is the baseline: one layer, a token a pass, "
        "trained on its own states",
    )
    add("--init", type=Path, help="start from this DFlash-format head, its block, layers and taps")
    add("--block", type=int, help="drafted places a round, root included (16; EAGLE3: 9)")
    add("--layers", type=int, help="layers of a GLANCE head (5)")
    add(
        "--taps",
        type=lambda text: [int(part) for part in text.split(",")],
        help="target layers the head reads, as 1,9,17 (five spread over the target)",
    )
    add(
        "--text-only-states",
        action="store_true",
        help="an ablation: the head learns from states of the prompt without its picture; its "
        "accept length is measured so, and it is not for serving",
    )
    add = out.add_argument_group("training").add_argument
    add("--epochs", type=float, default=6, help="passes over the rows (%(default)s)")
    add("--batch-rows", type=int, default=16, help="rows an update (%(default)s)")
    add("--micro-rows", type=int, help="rows in memory together; an update sums over them (all)")
    add("--anchors", type=int, default=16, help="blocks drawn in an answer (%(default)s)")
    add("--lr", type=float, default=6e-4, help="peak learning rate (%(default)s)")
    add(
        "--decay", type=float, default=7, help="offset k counts exp(-(k - 1) / decay) (%(default)s)"
    )
    add(
        "--past-block",
        type=float,
        default=0.125,
        help="share of blocks that show some true tokens first, which drafting past a block needs "
        "(%(default)s)",
    )
    add(
        "--held-out", type=int, default=64, help="rows kept from training, to measure (%(default)s)"
    )
    add("--save-every", type=int, default=500, help="updates between checkpoints (%(default)s)")
    add("--seed", type=int, default=0, help="of weights, order and blocks (%(default)s)")
    add("--no-cache", action="store_true", help="run the target for each row anew, save the disk")
    return out


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    check_folder("--out", options.out)
    console = messages()
    # After the parser, so that --help does not import torch.
    from sglang.glance.train.run import run

    try:
        run(options, console)
    except KeyboardInterrupt:
        note(console, "the same command continues where it stopped")
        raise
    return 0
