"""Say what this machine lacks before anything is downloaded. Runs on the system's Python."""

import importlib.util
import os
import shutil
import sys
import sysconfig

FREE_GIB = {"cpu": 8, "cuda": 25}


def problems(device: str) -> list[str]:
    found = []
    if sys.version_info[:2] < (3, 11):
        found.append(
            f"Python {sys.version.split()[0]}: 3.11 or newer is needed; "
            "choose one with `make PYTHON=python3.11 ...`"
        )
    if importlib.util.find_spec("ensurepip") is None:
        found.append("Python has no ensurepip: apt-get install python3-venv")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        found.append("no C++ compiler: apt-get install g++")
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        found.append(f"no {header}: apt-get install python3-dev")
    free = shutil.disk_usage(os.getcwd()).free / 2**30
    if free < FREE_GIB[device]:
        found.append(f"{free:.1f} GiB of disk free, about {FREE_GIB[device]} are needed")
    return found


def notes(device: str) -> list[str]:
    """What may be missed later."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or os.path.exists(os.path.join(home, "bin", "nvcc"))
    if device == "cpu" or found:
        return []
    return [
        "no nvcc: SGLang and FlashInfer compile kernels when they first run; if a server fails "
        "there, install the CUDA toolkit or set CUDA_HOME"
    ]


if __name__ == "__main__":
    lacks = problems(sys.argv[1])
    for line in [*notes(sys.argv[1]), *lacks]:
        print(f"setup: {line}", file=sys.stderr)
    sys.exit(bool(lacks))
