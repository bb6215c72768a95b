"""The functions that `ops_for` chooses for each device."""

import dataclasses
import inspect

import pytest
import torch
from sglang.srt.speculative.glance.kernels import cpu_ops
from sglang.srt.speculative.glance.kernels.select import ops_for

ROUND = ("build_tree", "ancestor_mask", "tree_links", "walk")


def modules(ops):
    return {name: getattr(ops, name).__module__.split(".")[-2:] for name in ROUND}


def test_each_device_gets_its_own_functions_with_the_same_arguments(monkeypatch):
    monkeypatch.setattr(cpu_ops, "available", lambda: False)
    twins, kernels = ops_for(torch.device("cpu")), ops_for(torch.device("cuda"))
    for field in dataclasses.fields(twins):
        twin, kernel = getattr(twins, field.name), getattr(kernels, field.name)
        assert twin.__name__ == kernel.__name__ == field.name
        assert ".core." in twin.__module__
        assert ".kernels." in kernel.__module__
        assert inspect.signature(twin) == inspect.signature(kernel)


def test_a_cpu_takes_the_cpp_ops_if_they_are_available(monkeypatch):
    monkeypatch.setattr(cpu_ops, "available", lambda: True)
    ops = ops_for(torch.device("cpu"))
    assert set(map(tuple, modules(ops).values())) == {("kernels", "cpu_ops")}
    for name in ROUND:
        signature = inspect.signature(getattr(ops, name))
        assert signature == inspect.signature(getattr(ops_for(torch.device("cuda")), name))


def test_without_the_package_there_are_no_cpp_ops(monkeypatch):
    monkeypatch.setattr(torch.ops, "sgl_kernel", object())
    assert not cpu_ops.available()
    with pytest.raises(AttributeError):
        cpu_ops.tree_links(torch.tensor([[-1, 0]]))
