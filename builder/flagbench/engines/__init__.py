"""The container engine: with it images are inspected, pulled and built."""

from flagbench.engines.connect import open_client
from flagbench.engines.docker import Engine, open_engine

__all__ = ["Engine", "open_client", "open_engine"]
