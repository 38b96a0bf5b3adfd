"""Container engines: images are inspected, pulled and built through one protocol."""

from flagbench.engines.base import Engine
from flagbench.engines.connect import open_client
from flagbench.engines.docker import open_engine

__all__ = ["Engine", "open_client", "open_engine"]
