"""Requests on each stack, a machine with chosen devices, and a launcher that ends runs as it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.records.store import Store
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.docker_command import Host
from flagbench.runs.launchers.native import NativeLauncher
from flagbench.runs.request import LocalOptions, RunRequest

from .fake_runs import FakeRuns


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


@pytest.fixture
def fake(store: Store, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """Replaces what starts runs, and the clock."""
    runs = FakeRuns()
    for kind in (NativeLauncher, DockerLauncher):
        monkeypatch.setattr(kind, "launch", lambda self, request: runs.launch(self, request))
    monkeypatch.setattr(NativeLauncher, "command", lambda self, request: "")
    for module in ("runs.launchers.launch_time", "runs.series"):
        monkeypatch.setattr(f"flagbench.{module}.utc_now", runs.now)
    for module in ("runs.launchers.launch_time", "runs.series"):
        monkeypatch.setattr(f"flagbench.{module}.elapsed", lambda: runs.seconds)
    return runs


@pytest.fixture
def signalled_at_the_second_record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`signalled_at_the_second_record(*numbers)`: this process gets them while the record of mine-2 is stored."""
    put = Store.put

    def send(*numbers: int) -> None:
        def interrupt(self: Store, record: bytes, **options: Any) -> Any:
            for number in numbers if b"mine-2" in record else ():
                os.kill(os.getpid(), number)
            return put(self, record, **options)

        monkeypatch.setattr(Store, "put", interrupt)

    return send
