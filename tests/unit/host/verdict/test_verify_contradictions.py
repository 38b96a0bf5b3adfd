"""A record whose parts say different things, that lacks a check, or whose numbers cannot be, is invalid."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.records.digest import config_digest
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.verdict import Verdict
from flagbench.verdict.derivation import Unknown, derived_conditions
from flagbench.verdict.sanity import problems
from flagbench.verdict.subject import text
from flagbench_core import __version__

from .conftest import CLAIM, REPLAYS, ROWS, Raw, held, read

TESTED = "parts"
GIB = 2**30
DELETE = "(left out)"
CPU, LORA, GLM, PRETRAINING = "run-distilbert-2", "run-lora-1", "run-glm-2", "run-pretraining-2"
A100 = "eight A100"
CASES = {"run-aquila-1", CPU, LORA, GLM, PRETRAINING}
ADDED = {
    "record_id": "20260101T115400Z-distilbert-a100-cuda11.6-1x8-0123abcd",
    "launch": {"started_at": "2026-01-01T11:53:55Z", "seconds": 366.0, "via": "docker"},
    "telemetry": {
        "devices": [
            {
                **{"index": 0, "mem_used_max_bytes": 14 * GIB, "temperature_max_c": 71, "util_mean": 0.97},
                **{"power_mean_w": 340.0, "power_max_w": 415.0, "energy_j": 30600.0, "energy_seconds": 90.0},
                **{"sm_clock_mean_mhz": 1380.0, "sm_clock_min_mhz": 1095.0},
            }
        ]
    },
}
"""What a replay does not have."""


def document(name: str) -> Raw:
    """A measured record; A100: a made-up one that has every part."""
    if name != A100:
        measured: Raw = json.loads((ROWS / f"{name}.json").read_text(encoding="utf-8"))
        return measured
    found: Raw = copy.deepcopy({**json.loads((REPLAYS / "a100-1x8.json").read_text(encoding="utf-8")), **ADDED})
    found["system"]["driver"] = found["conditions"]["driver"]
    found["flagbench"]["version"] = __version__
    for rank, device in zip(found["ranks"], found["system"]["devices"], strict=True):
        rank["uuid"] = device["uuid"] = f"GPU-{device['index']}"
    return found


def changed(name: str, changes: Mapping[str, Any]) -> Record:
    """A document with other values at dotted paths, or of a metric (@), and the digest of its configuration."""
    made = document(name)
    for path, value in changes.items():
        if path.startswith("@"):
            path = f"metrics.{[m['name'] for m in made['metrics']].index(path[1:])}.value"
        *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = made
        for part in parts:
            place = place[part]
        if value == DELETE:
            del place[last]
        elif isinstance(last, int) and last >= len(place):
            place.append(value)
        else:
            place[last] = value
    made["config_digest"] = config_digest(made["config"])
    return read(made)


def found(name: str, changes: Mapping[str, Any]) -> list[str]:
    record = changed(name, changes)
    return [*problems(record, CATALOG.cases[record.case])]


@pytest.mark.parametrize("name", sorted(path.stem for path in ROWS.glob("*.json")))
def test_sound_records_agree_with_themselves(name: str) -> None:
    assert found(name, {}) == []


def test_every_case_has_a_measured_record() -> None:
    assert {document(name)["case"] for name in CASES} == set(CATALOG.cases)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_condition_of_a_configuration_is_compared(name: str) -> None:
    record = read_record(ROWS / f"{name}.json")
    derived = derived_conditions(CATALOG.cases[record.case], record.config)
    known = {condition: value for condition, value in derived.items() if not isinstance(value, Unknown)}
    assert {condition: record.conditions[condition] for condition in known} == known
    assert {"model", "batch_size", "sequence_length", "stop_rule", "seed", "data", "weights"} <= set(known)
    for condition, value in known.items():
        (problem, *_) = found(name, {f"conditions.{condition}": "another"})
        assert all(shown in problem for shown in (condition, "another", text(value)))


FUSED = {"config.train.flash_attention": True, "argv": []}
"""Asks for one kernel for the attention, which PRETRAINING did not."""
RESUMED = {"quality.resumed": {"step": 8}, "argv.8": "--resume=/out"}
DEVICE = "telemetry.devices.0"
COPY = {"name": "copy", "unit": "GB/s", "scope": "device"}
E2E = {"name": "e2e_time", "value": 3.78, "unit": "s", "scope": "job"}

DOCTORED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    # Conditions that a configuration does not give, and those of other parts
    (CPU, {"config.data.source": "files"}, ("data", "shipped")),
    (PRETRAINING, {**FUSED, "conditions.attention": "none"}, ("attention", "none")),
    (A100, {"conditions.layout": "dp1 tp8 pp1"}, ("layout", "dp1 tp8 pp1", "dp8 tp1 pp1")),
    (LORA, {"conditions.peft": "0.4.0"}, ("peft", "0.4.0", "0.21.2")),
    (A100, {"conditions.torch": "1.12.0"}, ("torch", "1.12.0", "1.12.0a0+bd13bc6")),
    (A100, {"software.stack_expects.torch": "2.0", "system.image": {"context_digest": "sha256:" + "0" * 64}},
     ("1.12.0a0+bd13bc6", "2.0")),
    (A100, {"conditions.driver": "580.65"}, ("driver", "580.65", "470.129.06")),
    # Devices and processes
    (A100, {"system.devices.3.name": "NVIDIA H200"}, ("device_model", "NVIDIA A100-SXM4-40GB + NVIDIA H200")),
    (A100, {"system.devices.7.uuid": "gpu-0 "}, ("2 times", "gpu-0")),
    (A100, {"ranks.7.uuid": "GPU-0"}, ("2 times", "GPU-0", "GPU-7")),
    (A100, {"system.devices.7.index": 0}, ("2 times", "index")),
    (A100, {"system.devices.7.index": 70}, ("0, 1, 2, 3, 4, 5, 6, 70", "8 devices")),
    (A100, {"telemetry.devices.1": {"index": 0}}, ("2 times", "telemetry")),
    (A100, {"ranks.7.pid": 16}, ("2 times", "16")),
    (A100, {"ranks.7.host": "elsewhere"}, ("2 hosts", "machine, elsewhere")),
    (A100, {"ranks.7.exit": "SIGKILL"}, ("ok", "rank 7", "SIGKILL")),
    (A100, {"system.devices.7": DELETE}, ("7 of node 0", "devices_per_node is 8")),
    (A100, {"stack": "cpu"}, ("NVIDIA A100-SXM4-40GB", "software.cuda is 11.6", "config.precision is tf32")),
    (CPU, {"stack": "a100-cuda11.6", "system.devices.0.name": "X", "system.devices.1.name": "X",
           "system.cpu.model": "X"}, ("a100-cuda11.6", "processor X")),
    # Sizes and ranks
    (A100, {"config.gpus": 4}, ("config.gpus is 4", "1 x 8")),
    (A100, {"system.nodes": 2}, ("nodes is 1", "2 x 8")),
    (A100, {"layout.dp": 16}, ("dp16 tp1 pp1", "1 x 8")),
    (A100, {"layout.dp": 4, "layout.tp": 2}, ("layout.tp is 2", "1")),
    (A100, {"ranks.7": DELETE}, ("0, 1, 2, 3, 4, 5, 6", "1 x 8")),
    (A100, {"ranks.7.node": 1}, ("rank 7", "node 1", "node 0")),
    (A100, {"ranks.7.steps": 100}, ("100, 130",)),
    # Precision, peaks and formulas
    (A100, {"software.precision.executed": "fp32"}, ("config.precision is tf32", "fp32")),
    (A100, {"software.precision.requested": "fp32"}, ("config.precision is tf32", "fp32")),
    (A100, {"software.precision": None}, ("software.precision",)),
    (A100, {"software.precision.relative_error": DELETE}, ("software.precision", "tf32")),
    (CPU, {"software.precision.relative_error": 4e-4}, ("fp32", "4.0e-04")),
    (A100, {"config.precision": "fp16"}, ("config.precision is fp16", "tf32, fp32, bf16")),
    (A100, {"flops.peak.precision": "bf16", "flops.peak.flops": 312e12}, ("bf16", "tf32")),
    (A100, {"flops.peak.flops": 312e12}, ("312000000000000.0", "156000000000000.0")),
    (A100, {"flops.peak.flops": 312e12, "stack": "another"}, ("312000000000000.0", "156000000000000.0")),
    (A100, {"flops.peak": None}, ("mfu", "null", "156000000000000.0")),
    (A100, {"flops.formula": "other/v1"}, ("other/v1", "distilbert-matmul/v1")),
    # Names, times and the command line
    (A100, {"preset": "tiny"}, ("preset is tiny", "reference")),
    (A100, {"created_at": "2026-01-01T10:00:00Z", "launch": DELETE}, ("2026-01-01T10:00:00Z", "20260101T115400Z")),
    (A100, {"created_at": "2026-01-01T11:55:00Z"}, ("361.0 s", "60 s")),
    (A100, {"record_id": "20260231T115400Z-distilbert-a100-cuda11.6-1x8-0123abcd"}, ("20260231T115400Z",)),
    (A100, {"record_id": "20260101T115400Z-glm-a100-cuda11.6-1x8-0123abcd"}, ("-glm-a100", "distilbert-a100")),
    (A100, {"argv.0": "glm"}, ("distilbert", "glm")),
    (A100, {"argv.4": "4"}, ("config.gpus is 8", "--gpus 4")),
    (A100, {"argv.4": "8.0"}, ("config.gpus is 8", "--gpus 8.0")),
    (A100, {"argv.6": "bf16"}, ("config.precision is tf32", "--precision bf16")),
    (A100, {"argv.8": "--describe"}, ("--describe",)),
    (A100, {"argv.8": "--steps=200"}, ("window_steps is null", "200")),
    (CPU, {"argv.8": "--max-samples=320"}, ("window_steps is 40", "20")),
    (A100, {"argv.8": "--set=batch_size=96"}, ("batch_size is 32", "96")),
    (A100, {"argv.8": "--data=synthetic"}, ("data.source is files", "synthetic")),
    # The published size
    (A100, {"config.model.layers": 2}, ("config.model.layers is 2", "6")),
    (CPU, {"config.model.dim": 32}, ("config.model.dim is 32", "64")),
    (A100, {"config.train.warmup_steps": 100, "window.first_step": 100}, ("warmup_steps is 100", "20")),
    (A100, {"config.model.extra": 1}, ("config.model.extra",)),
    (A100, {"config.model.heads": DELETE}, ("config.model.heads",)),
    (A100, {"config.model.more": {"a.b": 1}}, ("'a.b'",)),
    (A100, {"flagbench.version": "0.0.9", "config.train.batch_size": DELETE}, ("batch_size is 32",)),
    (A100, {"flagbench.version": "0.0.9", "config.train.batch_size": 96, "conditions.batch_size": 96},
     ("batch_size is 96", "32", "0.0.9")),
    (A100, {"flagbench.version": "0.0.9", "config.model.layers": 2}, ("config.model.layers is 2", "6", "0.0.9")),
    # Steps and the work they did
    (CPU, {"window.steps": 30}, ("window.steps is 30", "40")),
    (CPU, {"window.first_step": 5}, ("window.first_step is 5", "10")),
    (CPU, {"work.steps": 500}, ("work.steps is 500", "50")),
    (A100, {"window.steps": 600}, ("620", "130")),
    (A100, {"work.samples_executed": 10**6}, ("samples_executed is 1000000", "33280")),
    (A100, {"work.samples_published_count": 67584}, ("samples_published_count is 67584", "33280")),
    (A100, {"window.samples": 10**6}, ("window.samples is 1000000", "28160")),
    (A100, {"work.tokens_executed": 10**6}, ("tokens_executed is 1000000", "33280 samples of 512")),
    (GLM, {"work.tokens_executed": 800 * 52 * 11}, ("tokens_executed is 457600", "800 samples of 52")),
    (A100, {"work.tokens_useful": 10**9}, ("tokens_useful is 1000000000", "17039360")),
    (A100, {"work.unit": "tokens"}, ("work.unit is tokens", "samples")),
    (A100, {"window.rank": 8}, ("window.rank is 8", "8 ranks")),
    # How it ended
    (A100, {"status.exit_code": 4}, ("ok", "done", "4")),
    (A100, {"status.reason": "out of memory"}, ("ok", "out of memory")),
    (A100, {"quality.resumed": {"step": 8}}, ("resumed", "--resume")),
    (A100, RESUMED, ("p_whole", "resumed", "distilbert resumes nothing")),
    (CPU, {"metrics.20": E2E}, ("e2e_time", "40")),
    # Checks
    (A100, {"quality.checks": []}, ("checks",)),
    *((A100, {f"quality.checks.{number}": DELETE}, (check,)) for number, check in
      ((0, "precision"), (3, "ranks_in_step"), (6, "evaluated"), (7, "learned"), (8, "above_chance"))),
    (CPU, {"quality.checks.6": {"name": "steps", "ok": True, "detail": "again"}}, ("steps", "2 times")),
    # Physics
    (A100, {"@acc": 1.2}, ("acc", "1.2")),
    (A100, {"@allocator_peak": -1}, ("allocator_peak", "-1")),
    (A100, {"@hfu": 1.2}, ("hfu", "1.2")),
    (A100, {"@mfu": 0.5}, ("mfu is 0.5", "hfu, 0.225879")),
    (A100, {"@mfu_useful": 0.9}, ("mfu_useful is 0.9", "mfu, 0.225879")),
    (A100, {"flops.executed": 1e20}, ("FLOP/s", "1.56e+14")),
    # No fewer than the case's formula gives
    (A100, {"flops.executed": 1e9, "flops.useful": 1e9, "window.seconds": 1.0}, ("FLOP/s", "1.56e+14")),
    (A100, {"flops.peak": None, "stack": "hopper-cuda13", "window.seconds": 1.0}, ("FLOP/s", "1.56e+14")),
    (A100, {"flops.useful": 1e17}, ("flops.useful is 1e+17", "4.08204e+15")),
    (A100, {"flops.measured_ceiling.flops": 2e14}, ("2e+14", "1.56e+14")),
    (A100, {"system.devices.0.memory_bytes": 20 * GIB}, ("20 GiB", "40")),
    (A100, {"@mem_peak": 45.0}, ("mem_peak is 45 GiB", "40")),
    (A100, {f"{DEVICE}.mem_used_max_bytes": 41 * GIB}, ("mem_used_max_bytes of 41 GiB", "40")),
    (A100, {f"{DEVICE}.name": "NVIDIA A100-SXM4-80GB"}, ("SXM4-40GB", "SXM4-80GB")),
    (A100, {f"{DEVICE}.name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, ("SXM4-40GB", "MIG 1g.5gb")),
    (A100, {f"{DEVICE}.power_max_w": 500}, ("power_max_w of 500", "400")),
    (A100, {f"{DEVICE}.power_mean_w": 430}, ("power_mean_w of 430", "400")),
    (A100, {f"{DEVICE}.power_mean_w": 416}, ("mean power of 416", "415")),
    (A100, {f"{DEVICE}.power_mean_w": 0}, ("power_mean_w of 0",)),
    (A100, {f"{DEVICE}.energy_j": 50}, ("50 J in 90 s", "340 W")),
    (A100, {f"{DEVICE}.energy_j": 50000}, ("50000 J in 90 s", "400")),
    (A100, {f"{DEVICE}.energy_j": 0, f"{DEVICE}.power_mean_w": None}, ("0 J in 90 s",)),
    (A100, {f"{DEVICE}.energy_seconds": 1e3, f"{DEVICE}.energy_j": 3e5}, ("1000 s", "361 s")),
    (A100, {f"{DEVICE}.sm_clock_mean_mhz": 1980}, ("sm_clock_mean_mhz of 1980", "1410")),
    (A100, {f"{DEVICE}.sm_clock_min_mhz": 1400}, ("1400", "1380")),
    (A100, {f"{DEVICE}.temperature_max_c": 300}, ("temperature of 300",)),
    (A100, {f"{DEVICE}.util_mean": 1.5}, ("utilisation of 1.5",)),
    (A100, {"metrics.20": {**COPY, "value": 1600.0}}, ("1600 GB/s", "1555")),
    (A100, {"metrics.20": {**COPY, "value": 12.0, "unit": "TiB/s", "scope": "job"}}, ("12 TiB/s", "1555")),
    # Times
    (A100, {"ranks.3.data_wait_total": 100.0}, ("data_wait_total of a rank is 100.0", "18.866213")),
    (A100, {"timing.data_wait": 90.0}, ("timing.data_wait is 90.0", "18.866213")),
    (A100, {"timing.eval": 10.0}, ("27.112745 s", "18.866213")),
    (A100, {"timing.init": 350.0}, ("368.866213", "361.0")),
    (CPU, {"window.host_seconds": 2.0}, ("window.host_seconds is 2.0", "timing.train")),
    (CPU, {"ranks.1.processor_seconds": 900.0}, ("rank 1", "900 s")),
    (CPU, {"telemetry.cpu.mem_used_max_bytes": 2**50}, ("1.049e+06 GiB",)),
    (A100, {"launch.seconds": 300.0}, ("361.000 s", "300.000 s")),
    (A100, {"timing.checkpoint": 100.0}, ("461.000 s", "366.000 s")),
    (A100, {"launch.started_at": "2026-02-31T11:53:55Z"}, ("2026-02-31T11:53:55Z",)),
    (A100, {"launch.started_at": "2026-01-01T13:30:00Z"}, ("2026-01-01T12:00:00Z", "2026-01-01T13:30:00Z")),
    (A100, {"launch.started_at": "2026-01-01T09:00:00Z"}, ("10800 s", "366.000 s")),
    (A100, {"system.clock_set_seconds": 7200.0}, ("2026-01-01T12:00:00Z", "2026-01-01T11:53:55Z")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "shown"), DOCTORED, ids=lambda value: str(value)[:60])
def test_a_doctored_record_is_invalid_and_shows_both_sides(
    name: str, changes: dict[str, Any], shown: tuple[str, ...]
) -> None:
    record = changed(name, changes)
    claim = next((claim for claim in CATALOG.claims.values() if claim.case == record.case), CLAIM)
    result = held(record, claim=claim)
    assert (result.verdict, result.verdict.exit_code) == (Verdict.INVALID, 12)
    assert [each for each in shown if each not in result.reason] == []


SOUND: list[tuple[str, dict[str, Any]]] = [
    (A100, {}),
    (A100, {"conditions.data": "files"}),
    (A100, {"launch": DELETE}),
    # The time of day was set during the run, and two machines' clocks drift apart.
    (A100, {"created_at": "2026-01-01T04:00:00Z", "system.clock_set_seconds": -28800.0}),
    (A100, {"created_at": "2026-01-01T20:00:00Z", "system.clock_set_seconds": 28800.0}),
    (A100, {"launch.seconds": 360.97}),
    (A100, {"layout": DELETE}),
    (A100, {"argv": [], "config.train.learning_rate": 1e-4, "conditions.learning_rate": 1e-4}),
    (A100, {"system.devices.0.uuid": None, "system.devices.1.uuid": None}),
    (A100, {"flagbench.version": "0.0.9", "config.train.new": 1, "config.eval.initial": DELETE}),
    (A100, {f"{DEVICE}.power_max_w": 440}),
    (A100, {"metrics.20": {**COPY, "value": 1328.0}}),
    (A100, {f"{DEVICE}.name": "A100-SXM4-40GB"}),
    (A100, {"ranks.7.exit": "exit 0", "ranks.6.uuid": None}),
    (A100, {"conditions.layout": "dp8 tp1 pp1"}),
    (CPU, {"record_id": "20260101-another-form"}),
    (LORA, {"conditions.peft": "0.21.2+local"}),
    (PRETRAINING, {**FUSED, "conditions.attention": "sdpa", "conditions.recompute": "none"}),
    (PRETRAINING, FUSED),  # before torch 2.0: what is asked for is not there
]


@pytest.mark.parametrize(("name", "changes"), SOUND, ids=lambda value: str(value)[:60])
def test_what_contradicts_nothing_is_not_refused(name: str, changes: dict[str, Any]) -> None:
    assert found(name, changes) == []


@pytest.mark.parametrize("path", ["config.train", "config.data.sequence_length", "config.model"])
def test_a_value_of_any_kind_is_a_clause_and_no_crash(path: str) -> None:
    for name in (A100, GLM):
        for value in (None, [], {}, "x", -1, 1e150, True, 10**30, [[[]]]):
            assert found(name, {path: value})
