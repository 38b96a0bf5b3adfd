"""Fixtures of the telemetry tests: builds of the NVML stub, and sampler processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from running import need

_HERE = Path(__file__).parent
ENTRYPOINTS = str(_HERE.parents[3] / "entrypoints")


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Builds the stub with the given macros; gives the environment in which a process finds it as NVML."""
    built: dict[tuple, Path] = {}

    def build(*macros: str) -> dict[str, str]:
        need(shutil.which("gcc") is not None, "gcc, to compile a small stand-in for NVML")
        if macros not in built:
            folder = tmp_path_factory.mktemp("nvml")
            command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
            command += ["-D" + macro for macro in macros]
            subprocess.run(
                [*command, "-o", str(folder / "libnvidia-ml.so.1"), str(_HERE / "nvml_stub.c")], check=True
            )
            built[macros] = folder
        return _environment(LD_LIBRARY_PATH=str(built[macros]))

    return build


@pytest.fixture(scope="session")
def clean_environment() -> Callable[..., dict[str, str]]:
    """Gives an environment in which the image side can be imported and no devices are chosen."""
    return _environment


def _environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVML_"))}
    return {**kept, "PYTHONPATH": ENTRYPOINTS, **more}


@pytest.fixture
def start_sampler() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `python -m flagbench_cases.telemetry` for this process, and makes sure that none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(out: Path, monitor: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("env", _environment())
        command = [sys.executable, "-m", "flagbench_cases.telemetry", "--pid", str(os.getpid())]
        command += ["--out", str(out), "--monitor", monitor, *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, universal_newlines=True, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
