#!/usr/bin/env bash
# Serve the shipped reader with GLANCE; `make serve` sets BIN, DEVICE and PORT. More flags may follow.
set -euo pipefail
data="$PWD/python/sglang/glance/shipped"
flags=(--speculative-algorithm GLANCE --speculative-draft-model-path "$data/glance-head")
if [[ $DEVICE == cpu ]]; then
    cores=$(nproc)  # half of them compute; see compute_threads in python/sglang/glance/serving/flags.py
    export SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}"
fi
cat <<TEXT
Once the log says "The server is fired up and ready to roll!", ask it from another terminal:

curl -sS http://127.0.0.1:$PORT/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "reader", "temperature": 0, "max_tokens": 64, "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "file://$data/pictures/000000-document.png"}},
    {"type": "text", "text": "Read the document."}]}]}'

TEXT
exec "$BIN/python" -m sglang.launch_server --model-path "$data/reader" \
    --host 127.0.0.1 --port "$PORT" "${flags[@]}" "$@"
