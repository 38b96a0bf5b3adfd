"""Which module runs a split model, by the installed release of Megatron-Core."""

from __future__ import annotations

import importlib.metadata

import pytest

from flagbench_cases.engines import megatron
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def pretend(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Let Megatron-Core of this version be installed; None: no release."""

    def answer(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", answer)


@pytest.mark.parametrize("version", ["0.7.0", "0.17.0"])
def test_a_release_without_a_module(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version)
    with refuses(UsageError, "Megatron-Core " + version) as caught:
        megatron.open_engine()
    assert "torch 2.6 and Python 3.10" in (caught.value.remedy or "")


def test_without_megatron_core(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    with refuses(UsageError, "not installed") as caught:
        megatron.open_engine()
    assert megatron.FLOORS in (caught.value.remedy or "")


def test_a_release_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "0.8.0")
    monkeypatch.setitem(megatron.MODULES, "0.8", "missing")
    with refuses(UsageError, "Megatron-Core 0.8.0", "No module named 'flagbench_cases.engines.megatron.missing'"):
        megatron.open_engine()
