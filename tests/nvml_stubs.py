"""Builds of standins/nvml_stub.c, a stand-in for NVML with two devices."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Dict, Tuple

from running import ENTRYPOINTS, need

SOURCE = Path(__file__).parent / "standins" / "nvml_stub.c"
UUIDS = ["GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"]


class NvmlStubs:
    """Builds the stub, each set of macros once; `make_folder`: where to."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._built: Dict[Tuple[str, ...], Path] = {}

    def __call__(self, *macros: str) -> Dict[str, str]:
        """The environment in which a process finds the stub, built with these macros, as NVML."""
        need(shutil.which("gcc") is not None, "gcc, to compile a small stand-in for NVML")
        if macros not in self._built:
            folder = self._make_folder()
            command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            command += ["-D" + macro for macro in macros]
            subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
            self._built[macros] = folder
        return image_environment(LD_LIBRARY_PATH=str(self._built[macros]))


def image_environment(**more: str) -> Dict[str, str]:
    """An environment in which the image side can be imported and no devices are chosen."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVML_"))}
    return {**kept, "PYTHONPATH": ENTRYPOINTS, **more}
