"""How many compiler jobs a build may run at once, by the engine's processors and memory."""

from __future__ import annotations

from flagbench.engines.base import Resources

JOB_BYTES = 9 * 2**30
"""Peak memory of one job, bytes: nvcc on flash-attn's kernels takes 8 to 9 GB. Source: setup.py of flash-attn 2.5.9
and 2.7.3, which without MAX_JOBS starts a job for each 9 GiB of free memory."""


def compiler_jobs(engine: Resources, stages: int) -> int:
    """MAX_JOBS for each of `stages` packages that are compiled in parallel; at least 1."""
    together = min(engine.cpus, engine.memory // JOB_BYTES)
    return max(1, together // max(1, stages))
