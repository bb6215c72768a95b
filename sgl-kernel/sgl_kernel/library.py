"""Load the C++ kernels that were built for this processor."""

import importlib
import importlib.util
from importlib import metadata

import torch

# Vector sets in ascending order. A processor runs a module built for its vector set or a lower one.
CAPABILITIES = ("default", "avx2", "avx512")


# SGLang's distributions for NVIDIA GPUs; both install a package named sgl_kernel too.
FOR_CUDA = ("sglang-kernel", "sgl-kernel")


def refuse_a_mix() -> None:
    """Raise ImportError if another distribution has installed files into this package's folder.

    The order of installation would then decide which distribution a file comes from.
    """
    for name in FOR_CUDA:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        raise ImportError(
            f"two distributions installed sgl_kernel, sglang-kernel-cpu and {name} {version}, and "
            f"their files overwrite each other: pip uninstall sglang-kernel-cpu {name}, then "
            "install the one for this machine"
        )


def load() -> None:
    """Import the module built for the widest vector set that this processor has."""
    machine = torch.backends.cpu.get_cpu_capability().lower()
    known = machine in CAPABILITIES
    runnable = CAPABILITIES[: CAPABILITIES.index(machine) + 1] if known else (machine,)
    for capability in reversed(runnable):
        name = f"sgl_kernel._C_{capability}"
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
            return
    raise ImportError(
        f"sgl_kernel has no C++ kernels for this processor ({machine}): it was built on another "
        "machine. Reinstall it here (pip install --no-build-isolation sgl-kernel/), or set "
        "SGL_KERNEL_CPU_TWINS=1 to run the slow torch twins"
    )
