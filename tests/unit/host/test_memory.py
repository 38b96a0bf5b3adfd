"""The memory that cases took where it was measured: as the sources have it, and which runs it is of."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.expect.memory import lacking, measured_memory
from flagbench.manifests.model import Case, MeasuredMemory
from flagbench.records.read import read_record
from flagbench.verdict.derivation import derived_conditions
from flagbench_core.config import preset_of, with_settings

from .conftest import ROOT

MEASURED = [(case, memory) for case in CATALOG.cases.values() for memory in case.memory]


def source_of(memory: MeasuredMemory) -> tuple[float, dict[str, Any]]:
    """The memory, GiB, and the conditions of a claim or a record, read without the manifest of the case."""
    if memory.source.startswith("docs/"):
        record = read_record(ROOT / memory.source)
        metric, conditions = record.metric("mem_peak"), dict(record.conditions)
        assert metric is not None
        return round(metric.value, 1), conditions
    claim = CATALOG.claims[memory.source]
    published = claim.metric("mem_peak")
    assert published is not None
    return published.value, dict(claim.conditions)


@pytest.mark.parametrize(("case", "memory"), MEASURED, ids=[memory.source for _, memory in MEASURED])
def test_a_number_is_that_of_its_source(case: Case, memory: MeasuredMemory) -> None:
    gib, conditions = source_of(memory)
    layout = None
    if memory.layout is not None:
        layout = f"dp{memory.layout['dp']} tp{memory.layout['tp']} pp{memory.layout['pp']}"
    assert memory.gib == gib
    assert (memory.device, memory.precision) == (conditions["device_model"], conditions["precision"])
    assert layout == conditions.get("layout")
    # The work is that of the reference preset: all that it gives and the source states.
    reference = derived_conditions(case, {**preset_of(case.presets, "reference"), "precision": memory.precision})
    for name in ("model", "layers", "sequence_length", "batch_size", "recompute"):
        if name in reference and conditions[name] != "not published":
            assert conditions[name] == reference[name], name


@pytest.mark.parametrize(
    ("case", "settings", "precision", "ranks", "gib"),
    [
        ("distilbert", {}, "tf32", 1, 12.1),
        ("distilbert", {}, "tf32", 8, 12.1),  # the least of what was measured
        ("distilbert", {}, "bf16", 1, None),
        ("distilbert", {"learning_rate": 1e-5}, "tf32", 1, 12.1),
        ("distilbert", {"batch_size": 16}, "tf32", 1, None),
        ("glm", {}, "fp16", 1, 17.2),
        ("llama3.1-8b-lora", {"batch_size": 64}, "bf16", 1, 73.3),  # more of the same micro-batches
        ("llama3.1-8b-lora", {"micro_batch_size": 1}, "bf16", 1, None),
        ("llama3.1-8b-lora", {"recompute": True}, "bf16", 1, None),
        ("llama3-8b", {}, "bf16", 8, 71),
        ("llama3-8b", {}, "bf16", 4, 71),  # with fewer replicas no less
        ("llama3-8b", {}, "bf16", 16, 62),
        ("llama3-8b", {}, "bf16", 32, None),
        ("llama3-8b", {}, "bf16", None, 62),
        ("llama3-8b", {}, "fp8", 8, 74),
        ("llama3-8b", {"tp": 8}, "bf16", 8, 30),
        ("llama3-8b", {"tp": 4}, "bf16", 8, None),
        ("llama3-8b", {"tp": 1, "layers": 8}, "bf16", 1, None),
        ("llama2-70b", {}, "bf16", 32, 62),
        ("llama2-70b", {"tp": 0}, "bf16", 32, 62),  # four stages, each of the eight ranks of a node
        ("aquila-33b", {}, "bf16", 1, 75.4),
        ("aquila-33b", {}, "bf16", 8, 12.3),
        ("aquila-33b", {}, "bf16", 4, None),
        ("aquila-33b", {}, "bf16", None, 12.3),
        ("roofs", {}, "fp32", 1, None),
    ],
)
def test_what_was_measured_of_a_run(
    case: str, settings: dict[str, Any], precision: str, ranks: int | None, gib: float | None
) -> None:
    of = CATALOG.cases[case]
    found = measured_memory(of, with_settings(of.raw, "reference", settings), precision, ranks)
    assert (found and found.gib) == gib


def test_the_ranks_of_each_node_share_the_layers() -> None:
    case = CATALOG.cases["aquila-33b"]
    reference = preset_of(case.presets, "reference")
    assert measured_memory(case, {**reference, "nodes": 1, "gpus": 8}, "bf16", 8) is not None
    assert measured_memory(case, {**reference, "nodes": 2, "gpus": 4}, "bf16", 8) is None


def test_nothing_was_measured_of_a_tiny_preset() -> None:
    case = CATALOG.cases["distilbert"]
    assert measured_memory(case, preset_of(case.presets, "tiny"), "tf32", 1) is None


@pytest.mark.parametrize(
    ("case", "way"),
    [
        ("distilbert", "--set batch_size"),
        ("llama3.1-8b-lora", "--set recompute=true"),
        ("llama3-8b", "flagbench plan llama3-8b --gpus 8 --mem 24"),
    ],
)
def test_what_needs_less_memory(case: str, way: str) -> None:
    of = CATALOG.cases[case]
    assert way in lacking(of, of.memory[0], 24, None)
