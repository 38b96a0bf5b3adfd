"""Doctor asks a usable engine what it is and which images it has; what it cannot ask is a warning with a remedy."""

from __future__ import annotations

import pytest

from flagbench import doctor
from flagbench.catalog.load import load_catalog
from flagbench.doctor import Finding, Level
from flagbench.engines.base import EngineError

SOCKET = Finding("docker", Level.OK, "socket /run/engine.sock")


class Engine:
    """An engine with some images."""

    def __init__(self, *images: str) -> None:
        self.images = images
        self.closed = False

    def health(self) -> str:
        return "Engine 1"

    def inspect(self, ref: str) -> object | None:
        return ref if ref in self.images else None

    def close(self) -> None:
        self.closed = True


def test_the_images_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("flagbench/distilbert:cpu", "flagbench/stack:cpu", "other:1")
    monkeypatch.setattr(doctor, "open_engine", lambda: engine)
    assert doctor.engine(SOCKET, load_catalog()) == Finding("docker", Level.OK, "Engine 1; images: distilbert:cpu")
    assert engine.closed


def test_none_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "open_engine", Engine)
    for catalog in (load_catalog(), None):
        assert "no image of a case, `flagbench build`" in doctor.engine(SOCKET, catalog).detail


def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead() -> Engine:
        raise EngineError("it does not answer", remedy="restart it")

    monkeypatch.setattr(doctor, "open_engine", dead)
    finding = doctor.engine(SOCKET, None)
    assert (finding.level, finding.detail) == (Level.WARN, "it does not answer")
    assert finding.remedy == "restart it; --via native needs no engine"


def test_no_socket_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(doctor, "open_engine")
    missing = Finding("docker", Level.WARN, "no socket", "start it")
    assert doctor.engine(missing, None) is missing
