"""The name of the machine that a run is on, as its record has it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def host_name(environment: Mapping[str, str] = os.environ) -> str:
    """The name of this machine, as its cluster knows it.

    FLAGBENCH_HOST is set by launchers of containers, which have names of their own. SLURMD_NODENAME is Slurm's name
    of the node, which may be another one than that of the machine.
    """
    return environment.get("FLAGBENCH_HOST") or environment.get("SLURMD_NODENAME") or socket.gethostname()
