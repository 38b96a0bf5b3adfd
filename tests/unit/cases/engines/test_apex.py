"""An Apex that was built without its CUDA extensions counts as absent; one with them is used."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.glm.optimizer import adamw
from flagbench_cases.engines import apex

pytestmark = pytest.mark.image
OPTIMIZERS = """
class FusedAdam:
    def __init__(self, *_, **__):
        raise RuntimeError("apex.optimizers.FusedAdam requires cuda extensions")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an Apex of Python code alone, from which Python imports."""
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").touch()
    (tmp_path / "apex" / "optimizers.py").write_text(OPTIMIZERS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("apex", "apex.optimizers", "amp_C"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))  # is restored to what it was
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


class OnDevice:
    """A parameter that says it is on a device."""

    device = torch.device("cuda", 0)


def test_without_extensions_it_is_absent(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, **_: "torch's")
    groups: list[dict[str, Any]] = [{"params": [OnDevice()], "weight_decay": 0.0}]
    with pytest.raises(RuntimeError):  # not an ImportError, so nobody falls back
        adamw(groups, 1e-5)
    monkeypatch.delitem(sys.modules, "apex.optimizers")
    assert apex.hide_if_unusable() == apex.UNUSABLE
    with pytest.raises(ImportError):
        importlib.import_module("apex.optimizers")
    assert adamw(groups, 1e-5)[0] == "torch's"


def test_with_extensions_it_is_used(installed: Path) -> None:
    (installed / "amp_C.py").touch()
    assert apex.hide_if_unusable() is None
    assert importlib.import_module("apex.optimizers").FusedAdam


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert apex.hide_if_unusable() is None
