"""`python -m sgl_kernel.bench --model-path DIR`: times a bf16 decode step at batch 1."""
