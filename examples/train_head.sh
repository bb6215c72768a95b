#!/usr/bin/env bash
# Train a GLANCE head for a target of your own, then serve the pair.
#
#   examples/train_head.sh [TARGET [DATA [OUT [FLAG...]]]]
#
# TARGET: folder of a dense Qwen3-VL or Qwen2.5-VL. DATA: a JSONL file of prompts, each line as
# {"image": "scan.png", "prompt": "What is the total?"}. FLAG...: of the server, as --port 30001.
# Without arguments: the shipped reader and its 20 rows. So few rows show that every step works;
# a head that drafts well wants 10,000, and the trainer's default sizes (docs/training.md).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
shipped=$root/python/sglang/glance/shipped
target=${1:-$shipped/reader} data=${2:-$shipped/pictures/prompts.jsonl} out=${3:-$root/out/own-head}

"$root/.venv/bin/python" -m sglang.glance train --model-path "$target" --data "$data" \
    --out "$out" --layers 1 --epochs 1 --held-out 4 --max-new-tokens 64

exec "$root/.venv/bin/python" -m sglang.launch_server --model-path "$target" \
    --speculative-algorithm GLANCE --speculative-draft-model-path "$out/head" "${@:4}"
