"""Fixtures of the telemetry tests: environments, and sampler processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvml_stubs import image_environment


@pytest.fixture(scope="session")
def clean_environment() -> Callable[..., dict[str, str]]:
    """Gives an environment in which the image side can be imported and no devices are chosen."""
    return image_environment


@pytest.fixture
def start_sampler() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `python -m flagbench_cases.telemetry` for this process, and makes sure that none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(out: Path, monitor: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("env", image_environment())
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
