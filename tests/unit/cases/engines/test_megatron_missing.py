"""What a person is told where Megatron-Core is not installed."""

from __future__ import annotations

import sys

import pytest

from flagbench_cases.engines.megatron import open_engine
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def test_it_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flagbench_cases.engines.megatron.mcore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", None)  # what an import of it then raises, as of one that is missing
    with refuses(UsageError, "Megatron-Core", "megatron") as refused:
        open_engine()
    assert "pip install megatron-core==0.16.1" in refused.value.remedy
