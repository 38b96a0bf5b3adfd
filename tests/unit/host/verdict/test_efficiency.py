"""What a million tokens or samples take, in joules and money."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import convert

from flagbench.errors import FlagbenchError
from flagbench.price import price_of
from flagbench.records.read import read_record
from flagbench.verdict.efficiency import Efficiency, compute_efficiency
from unit.host.verdict.conftest import MEASURED


@pytest.mark.parametrize("nodes", [1, 2])
def test_joules_and_price_of_a_million_tokens(nodes: int) -> None:
    """13,418 tokens/s and 667 W, of one H100 or of each of two nodes, at 3.60 an hour."""
    raw: dict[str, Any] = json.loads((MEASURED / "h100-qwen2.5-7b-lora.json").read_text(encoding="utf-8"))
    raw["system"]["nodes"] = nodes
    found = compute_efficiency(read_record(json.dumps(raw).encode()), price=3.6)
    assert found is not None
    assert (found.unit, found.per_second) == ("tokens", pytest.approx(13_418, rel=1e-4))
    assert found.joules_per_million == pytest.approx(nodes * 49_709, rel=1e-4)
    assert found.price_per_million == pytest.approx(nodes * 0.074526, rel=1e-4)


def qwen(**window_energy: Any) -> dict[str, Any]:
    """The record of an H100 that trained 131,072 tokens in each of the two steps of its window."""
    raw: dict[str, Any] = json.loads((MEASURED / "h100-qwen2.5-7b-lora.json").read_text(encoding="utf-8"))
    if window_energy:
        raw["telemetry"]["devices"][0]["window_energy"] = window_energy
    return raw


TOKENS = 262_144
"""In the window of that record."""
COUNTED: dict[str, Any] = {"joules": 13_107.2, "steps": 2, "seconds": 19.55, "source": "counter", "error_j": 393.216}


def efficiency_of(raw: dict[str, Any]) -> Efficiency:
    found = compute_efficiency(read_record(json.dumps(raw).encode()), price=None)
    assert found is not None
    return found


def test_joules_are_those_of_the_window() -> None:
    found = efficiency_of(qwen(**COUNTED))
    assert found.joules_per_million == pytest.approx(1e6 * 13_107.2 / TOKENS)
    assert (found.joules_source, found.joules_of, found.joules_error) == ("counter", "window", pytest.approx(0.03))


def test_without_a_counter_they_are_integrated_power() -> None:
    found = efficiency_of(qwen(**{**COUNTED, "source": "power", "error_j": None}))
    assert (found.joules_source, found.joules_of, found.joules_error) == ("power", "window", None)


@pytest.mark.parametrize("energy", [{}, {**COUNTED, "steps": 1}], ids=["an earlier record", "other steps"])
def test_a_record_without_those_of_its_window_has_its_training_s(energy: dict[str, Any]) -> None:
    found = efficiency_of(qwen(**energy))
    assert found.joules_per_million == pytest.approx(49_709, rel=1e-4)
    assert (found.joules_source, found.joules_of, found.joules_error) == ("power", "training", None)


def test_all_devices_count_or_none() -> None:
    raw = qwen(**COUNTED)
    (device,) = raw["telemetry"]["devices"]
    raw["telemetry"]["devices"].append({**device, "index": 1})
    both = efficiency_of(raw)
    assert both.joules_per_million == pytest.approx(2e6 * 13_107.2 / TOKENS)
    assert both.joules_error == pytest.approx(0.03)
    del raw["telemetry"]["devices"][1]["window_energy"]
    assert efficiency_of(raw).joules_of == "training"


@pytest.mark.parametrize(
    ("name", "padded", "of"),
    [
        ("h100-distilbert", True, "training"),
        ("h100-qwen2.5-7b-lora", False, "training"),
        ("h200-aquila-33b", True, "inference"),
    ],
)
def test_padding_that_is_counted_is_told(name: str, padded: bool, of: str) -> None:
    """Of DistilBERT's 3,604,480 tokens 92,553 are words of a sentence."""
    found = efficiency_of(json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8")))
    assert (found.unit, found.padding_included, found.joules_of) == ("tokens", padded, of)
    assert ("padding included" in found.text()) is padded


def test_an_earlier_certificate_says_less() -> None:
    stated = {
        "part": "glm",
        "unit": "tokens",
        "per_second": 9.0,
        "joules_per_million": 9.0,
        "price_per_million": None,
    }
    found = convert(stated, Efficiency)
    assert (found.joules_of, found.padding_included) == (None, None)
    assert "warm-up included" in found.text()


@pytest.mark.parametrize("text", ["free", "1,5", "-1", "0", "nan", "inf"])
def test_a_price_is_a_number_above_0(text: str) -> None:
    with pytest.raises(FlagbenchError):
        price_of(text, "FLAGBENCH_PRICE")
