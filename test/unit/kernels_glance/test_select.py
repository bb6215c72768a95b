import dataclasses
import inspect

import torch
from sglang.srt.speculative.glance.kernels.select import ops_for


def test_each_device_gets_its_own_functions_with_the_same_arguments():
    twins, kernels = ops_for(torch.device("cpu")), ops_for(torch.device("cuda"))
    for field in dataclasses.fields(twins):
        twin, kernel = getattr(twins, field.name), getattr(kernels, field.name)
        assert twin.__name__ == kernel.__name__ == field.name
        assert ".core." in twin.__module__
        assert ".kernels." in kernel.__module__
        assert inspect.signature(twin) == inspect.signature(kernel)
