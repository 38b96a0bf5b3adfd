"""The container engine: with it images are inspected, pulled and built."""

from flagbench.images.engines.connect import open_client
from flagbench.images.engines.docker import Engine, open_engine

__all__ = ["Engine", "open_client", "open_engine"]
