"""Compiles csrc/ for the processor of the machine that builds.

torch names that processor's vector set: AVX512, AVX2 or DEFAULT. The module carries the name, so
that a machine with less can refuse it (sgl_kernel/library.py).
"""

from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

CAPABILITY = torch.backends.cpu.get_cpu_capability()
VECTOR_FLAGS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
}
MODULE = f"_C_{CAPABILITY.lower()}"

extension = CppExtension(
    f"sgl_kernel.{MODULE}",
    [str(path) for path in sorted(Path("csrc").glob("*.cpp"))],
    extra_compile_args=[
        "-O2",
        "-Wno-unknown-pragmas",
        "-fopenmp",
        # A multiply and an add that the compiler fuses in one loop but not in another would make
        # the result of a row depend on the shape of the call.
        "-ffp-contract=off",
        "-DAT_PER_OPERATOR_HEADERS",
        f"-DCPU_CAPABILITY={CAPABILITY}",
        f"-DCPU_CAPABILITY_{CAPABILITY}",
        f"-DMODULE_INIT=PyInit_{MODULE}",
        f'-DMODULE_NAME="{MODULE}"',
        *VECTOR_FLAGS.get(CAPABILITY, []),
    ],
    extra_link_args=["-fopenmp"],
)

setup(ext_modules=[extension], cmdclass={"build_ext": BuildExtension})
