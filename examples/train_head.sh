#!/usr/bin/env bash
# Train a GLANCE head for a target of your own, then serve the pair.
#
#   examples/train_head.sh [TARGET [DATA [OUT [FLAG...]]]]
#
# TARGET: folder of a dense Qwen3-VL or Qwen2.5-VL. DATA: a JSONL file, each line as
# {"image": "scan.png", "prompt": "What is the total?"}. FLAG...: of the server, as --port 30001.
# Without arguments: the shipped reader and its 20 rows. 16 rows show that everything works; a head
# that drafts well wants 10,000, the trainer's own sizes and epochs (docs/training.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shipped=python/sglang/glance/data
target=${1:-$shipped/reader} data=${2:-$shipped/pictures/prompts.jsonl} out=${3:-out/own-head}

.venv/bin/python -m sglang.glance train --model-path "$target" --data "$data" --out "$out" \
    --layers 1 --epochs 1 --held-out 4 --max-new-tokens 64

exec .venv/bin/python -m sglang.launch_server --model-path "$target" \
    --speculative-algorithm GLANCE --speculative-draft-model-path "$out/head" \
    --speculative-num-draft-tokens 32 "${@:4}"
