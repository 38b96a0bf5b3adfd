"""Rendering is fast enough to be done at every build and in every check."""

from __future__ import annotations

import pytest

from flagbench.catalog.model import Catalog
from flagbench.render.image import ImageRenderer
from speed import cpu_seconds


@pytest.mark.alone
def test_the_matrix_renders_within_50_ms_of_cpu(catalog: Catalog) -> None:
    def digests() -> list[str]:
        # A renderer of its own each time: locks, files and the image side's code are read again.
        return [rendered.digest for rendered in ImageRenderer(catalog).matrix()]

    runs = sum(len(stack.runs) for stack in catalog.stacks.values())
    assert len(digests()) == len(catalog.stacks) + runs
    assert cpu_seconds(digests, repeats=20) <= 0.05
