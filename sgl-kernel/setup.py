"""Compiles csrc/ for the processor of the machine that builds.

torch names the vector set of this processor: AVX512, AVX2 or DEFAULT. The module's name holds the
vector set, so that sgl_kernel/library.py loads no module that needs a wider set than the machine's.
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
        # The compiler must not fuse a multiply with an add in one loop but not in another: a row's
        # result would depend on the shape of the call.
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
