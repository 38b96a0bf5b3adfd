"""The health of MetaX devices: what mx-smi prints of it was not seen, so that nothing is read."""

from __future__ import annotations

from typing import List

from flagbench_core.health.reading import DeviceHealth
from flagbench_core.health.tools import ToolError


class MxSmiReader:
    """No device."""

    source = "mx-smi"

    def open(self) -> List[DeviceHealth]:
        """Raises ToolError."""
        raise ToolError("how mx-smi prints the health of devices is not known")

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """The device as it is."""
        return device
