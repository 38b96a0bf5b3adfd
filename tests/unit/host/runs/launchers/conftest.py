"""What the launchers' tests share: requests on each stack, and a machine of one's own making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.runs.launchers.container import Host
from flagbench.runs.request import LocalOptions, RunRequest


@pytest.fixture(scope="session")
def make_request() -> Callable[..., RunRequest]:
    """`make_request(stack, **options)`: a run of distilbert."""
    catalog = load_catalog()

    def make(stack: str = "cpu", **fields: Any) -> RunRequest:
        return RunRequest(*resolve_image(f"distilbert:{stack}", catalog), LocalOptions(**fields))

    return make


@pytest.fixture
def make_host() -> Callable[..., Host]:
    """`make_host(uid=..., nodes={...}, groups={name: number})`: a machine, by default one with nothing."""

    def make(
        uid: int = 1234,
        gid: int = 100,
        further: tuple[int, ...] = (),
        nodes: frozenset[str] = frozenset(),
        groups: dict[str, int] | None = None,
    ) -> Host:
        return Host(uid, gid, further, nodes.__contains__, (groups or {}).get)

    return make
