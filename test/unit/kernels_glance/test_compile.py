"""Every kernel compiles for A100, H100 and H200 on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

CAPABILITIES = ["80", "90"]  # A100, H100 and H200
OVERLAY = Path(__file__).parents[3] / "python" / "sglang"

# Runs in a separate process, because Triton cannot compile under TRITON_INTERPRET=1. An empty
# package replaces SGLang.
PROGRAM = """
import importlib, sys, types
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sglang = types.ModuleType("sglang")
sglang.__path__ = [sys.argv[1]]
sys.modules["sglang"] = sglang
package = "sglang.srt.speculative.glance.kernels."
INT, FLOAT, BOOL, SIZE = "*i64", "*fp32", "*i1", "i32"
KERNELS = [
    ("triton_tree", "_build_tree_kernel", [INT, INT, FLOAT, INT, INT, INT, FLOAT, SIZE, SIZE, SIZE],
     {"NODES": 64, "RANKS": 8}),
    ("triton_tree", "_tree_links_kernel", [INT] * 4 + [SIZE], {"NODES": 64}),
    ("triton_tree", "_ancestor_mask_kernel", [INT, BOOL, SIZE, SIZE], {"NODES": 64}),
    ("triton_accept", "_walk_kernel", [INT] * 7 + [SIZE, SIZE], {"NODES": 64}),
    ("triton_masks", "_fill_full_mask_kernel", [BOOL, INT, BOOL, SIZE],
     {"NODES": 64, "BLOCK": 1024, "SHARES": 8}),
    ("triton_masks", "_fill_full_mask_kernel", [BOOL, "*i32", "*u8", SIZE],
     {"NODES": 64, "BLOCK": 1024, "SHARES": 8}),
]
for module, name, types_, constants in KERNELS:
    kernel = getattr(importlib.import_module(package + module), name)
    names = [n for n in kernel.arg_names if n not in constants]
    if len(names) != len(types_):
        raise SystemExit(f"{name}: arguments {names} do not match {types_}")
    signature = dict(zip(names, types_)) | dict.fromkeys(constants, "constexpr")
    for capability in map(int, sys.argv[2:]):
        compiled = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": 1},
        )
        if "cubin" not in compiled.asm:
            raise SystemExit(f"{name}: no machine code, got {list(compiled.asm)}")
        print("compiled", name, capability)
"""


def test_kernels_compile(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(OVERLAY), *CAPABILITIES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("compiled") == 6 * len(CAPABILITIES)
