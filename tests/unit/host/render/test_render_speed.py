"""Rendering is fast enough to be done at every build and in every check."""

from __future__ import annotations

import time

import pytest

from flagbench.catalog.model import Catalog
from flagbench.render.image import ImageRenderer


@pytest.mark.alone
def test_the_matrix_renders_within_50_ms_of_cpu(catalog: Catalog) -> None:
    costs = []
    for _ in range(5):
        before = time.process_time()
        # A renderer of its own each time: locks, files and the image side's code are read again.
        digests = [rendered.digest for rendered in ImageRenderer(catalog).matrix()]
        costs.append(time.process_time() - before)
    runs = sum(len(stack.runs) for stack in catalog.stacks.values())
    assert len(digests) == len(catalog.stacks) + runs
    assert min(costs) <= 0.05
