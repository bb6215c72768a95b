"""Run the kernels on a GPU where there is one, else under Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is defined, so this file sets the variable before any
import of a kernel.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.append(str(Path(__file__).parents[1] / "core"))  # verify_reference, tree_reference


@pytest.fixture(scope="session", autouse=True)
def kernels_are_runnable():
    if torch.cuda.is_available():
        return
    from sglang.srt.speculative.glance.kernels import triton_accept as accept
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(accept._walk_kernel, InterpretedFunction):
        pytest.fail(
            "the kernels were imported before TRITON_INTERPRET=1 was set; run these tests in their "
            "own process or set TRITON_INTERPRET=1 for the whole run"
        )


@pytest.fixture
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
