"""Reads the newest sample from a sampler's file, for the progress line."""

from __future__ import annotations

import json
import os
from typing import Any

READ_BYTES = 2**16
"""Bytes read from the end of the file: more than the size of a sample with 16 devices."""


def sensors_text(path: str) -> str:
    """`312 W  64 C`: total power of all devices and the highest temperature; empty if neither is known."""
    devices = (_newest_sample(path) or {}).get("devices", [])
    power = _values(devices, "power_w")
    heat = _values(devices, "temperature_c")
    words = []
    if power:
        words.append(f"{sum(power):.0f} W")
    if heat:
        words.append(f"{max(heat):.0f} C")
    return "  ".join(words)


def _values(devices: list[dict[str, Any]], key: str) -> list[float]:
    return [device[key] for device in devices if isinstance(device.get(key), (int, float))]


def _newest_sample(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - READ_BYTES))
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
