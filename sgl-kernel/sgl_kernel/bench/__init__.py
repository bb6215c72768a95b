"""`python -m sgl_kernel.bench --model-path DIR`: what a bf16 decode step costs at batch 1."""
