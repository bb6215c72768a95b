import pytest
import sgl_kernel
import torch


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """A busy machine makes tiny parallel regions slow; tests of threading raise the count."""
    assert not sgl_kernel.USES_TWINS, "unset SGL_KERNEL_CPU_TWINS: the C++ ops are under test"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
