"""Container engines: images are inspected, pulled and built through one protocol."""

from flagbench.engines.base import Engine
from flagbench.engines.docker import open_client, open_engine

__all__ = ["Engine", "open_client", "open_engine"]
