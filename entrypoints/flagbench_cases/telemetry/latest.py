"""Reads power and temperature from the newest sample in a sampler's file, for the progress line of a run."""

from __future__ import annotations

import json
import os
from typing import Any

READ_BYTES = 2**16
"""Bytes read from the end of the file: more than the size of a sample with 16 devices."""


def sensors_text(path: str) -> str:
    """`312 W  64 C`: total power of all devices and the highest temperature; empty if neither is known."""
    sample = _newest_sample(path)
    if sample is None:
        return ""
    devices = sample.get("devices", [])
    powers = _values(devices, "power_w")
    temperatures = _values(devices, "temperature_c")
    words = []
    if powers:
        words.append(f"{sum(powers):.0f} W")
    if temperatures:
        words.append(f"{max(temperatures):.0f} C")
    return "  ".join(words)


def _values(devices: list[dict[str, Any]], key: str) -> list[float]:
    """The numbers under `key` of the devices that have one."""
    return [device[key] for device in devices if isinstance(device.get(key), (int, float))]


def _newest_sample(path: str) -> dict[str, Any] | None:
    """The newest complete sample, as sampler.py writes it; None if there is none, or the file cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - READ_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            sample = json.loads(line.decode("utf-8"))
        except ValueError:  # the first and the last line may be incomplete
            continue
        if isinstance(sample, dict) and sample.get("kind") == "sample":
            return sample
    return None
