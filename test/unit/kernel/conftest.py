"""Run the tests of the C++ ops on one thread with a fixed seed; make `paged` importable."""

import sys
from pathlib import Path

import pytest
import sgl_kernel
import torch

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """On a busy machine, threads slow down small ops; tests of threading raise the count."""
    assert not sgl_kernel.USES_TWINS, "unset SGL_KERNEL_CPU_TWINS: the C++ ops are under test"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
