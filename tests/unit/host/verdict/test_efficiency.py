"""What a million tokens or samples take, in joules and money."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.price import price_of
from flagbench.records.read import read_record
from flagbench.verdict.efficiency import efficiency
from unit.host.verdict.conftest import MEASURED


@pytest.mark.parametrize("nodes", [1, 2])
def test_joules_and_price_of_a_million_tokens(nodes: int) -> None:
    """13,418 tokens/s and 667 W, of one H100 or of each of two nodes, at 3.60 an hour."""
    raw: dict[str, Any] = json.loads((MEASURED / "h100-qwen2.5-7b-lora.json").read_text(encoding="utf-8"))
    raw["system"]["nodes"] = nodes
    found = efficiency(read_record(json.dumps(raw).encode()), price=3.6)
    assert found is not None
    assert (found.unit, found.per_second) == ("tokens", pytest.approx(13_418, rel=1e-4))
    assert found.joules_per_million == pytest.approx(nodes * 49_709, rel=1e-4)
    assert found.price_per_million == pytest.approx(nodes * 0.074526, rel=1e-4)


@pytest.mark.parametrize("text", ["free", "1,5", "-1", "0", "nan", "inf"])
def test_a_price_is_a_number_above_0(text: str) -> None:
    with pytest.raises(FlagbenchError):
        price_of(text, "FLAGBENCH_PRICE")
