"""A record whose parts say different things, that lacks a check, or whose numbers cannot be, is invalid."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.record.digest import config_digest
from flagbench.record.model import Record
from flagbench.record.read import read_record
from flagbench.verify import Verdict, verify_claim
from flagbench.verify.derivation import Unknown, derived_conditions
from flagbench.verify.sanity import problems

from .conftest import REPLAYS, ROWS

Document = dict[str, Any]
MEASURED = sorted(path.stem for path in ROWS.glob("run-*.json"))
GIB = 2**30
DELETE = "(left out)"
COPY = {"name": "copy", "unit": "GB/s", "scope": "device"}
E2E = {"name": "e2e_time", "value": 3.78, "unit": "s", "scope": "job"}
CPU, LORA, GLM, PRETRAINING = "run-distilbert-2", "run-lora-1", "run-glm-2", "run-pretraining-2"

FUSED = {"config.train.flash_attention": True, "argv": []}
"""Asks for one kernel for the attention, which PRETRAINING did not."""


def measured(name: str) -> Document:
    found: Document = json.loads((ROWS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def a100() -> Document:
    """Eight A100 that trained two epochs of SST-2; every number is made up, and all of them fit each other."""
    document: Document = json.loads((REPLAYS / "a100-1x8.json").read_text(encoding="utf-8"))
    document = {key: value for key, value in document.items() if not key.startswith("evidence")}
    document["argv"] = ["distilbert", "--nodes", "1", "--gpus", "8", "--full"]
    document["conditions"]["driver"] = document["system"]["driver"] = "470.129.06"
    for device in document["system"]["devices"]:
        device["memory_bytes"] = 40 * GIB
    checks = CATALOG.cases["distilbert"].checks
    document["quality"] = {"checks": [{"name": name, "ok": True, "detail": "made up"} for name in checks]}
    rates = {"p_core": 1920.0, "p_train": 1860.0, "p_whole": 1760.0, "p_core_host": 1940.0}
    units = {**dict.fromkeys(rates, ("samples/s", "job")), "acc": ("fraction", "job"), "mem_peak": ("GiB", "device")}
    document["metrics"] = [
        {"name": name, "value": value, "unit": units[name][0], "scope": units[name][1]}
        for name, value in {**rates, "acc": 0.913, "mem_peak": 13.9}.items()
    ]
    seconds = 508 * 256 / 1920
    for entry, device in zip(document["ranks"], document["system"]["devices"]):
        entry["uuid"] = device["uuid"] = f"GPU-{device['index']}"
        entry["steps"] = 528
    document["layout"] = {"dp": 8, "tp": 1, "pp": 1}
    counts = {"samples_executed": 2 * 67349, "samples_published_count": 2 * 67584}
    tokens = {"tokens_executed": 2 * 67349 * 512, "tokens_useful": 2 * 67349 * 13}
    document["work"] = {"unit": "samples", "steps": 528, **counts, **tokens}
    host = {"seconds": seconds, "host_seconds": seconds * 1.01}
    document["window"] = {"first_step": 20, "steps": 508, "samples": 508 * 256, **host}
    document["timing"] = {"init": 200.0, "train": 85.0, "step": 71.0, "eval": 9.0, "data_wait": 3.0, "e2e": 360.0}
    peak = {"flops": 156e12, "precision": "tf32", "source": "datasheet"}
    ceiling = {"flops": 120e12, "precision": "tf32", "method": "products"}
    useful = {"formula": "distilbert-matmul/v1", "executed": 508 * 256 * 1.4496e11, "useful": 508 * 256 * 3e9}
    document["flops"] = {**useful, "recomputed": 0.0, "peak": peak, "measured_ceiling": ceiling}
    use = 1920 * 1.4496e11 / 8 / 156e12
    for name, value in (("mfu", use), ("hfu", use), ("mfu_useful", use / 48)):
        document["metrics"].append({"name": name, "value": value, "unit": "fraction", "scope": "job"})
    document["metrics"].append({"name": "allocator_peak", "value": 12.5, "unit": "GiB", "scope": "device"})
    power = {"power_mean_w": 340.0, "power_max_w": 415.0, "energy_j": 30600.0, "energy_seconds": 90.0}
    clock = {"sm_clock_mean_mhz": 1380.0, "sm_clock_min_mhz": 1095.0, "temperature_max_c": 71, "util_mean": 0.97}
    document["telemetry"] = {"devices": [{"index": 0, "mem_used_max_bytes": 14 * GIB, **power, **clock}]}
    document["record_id"] = "20260101T115400Z-distilbert-a100-cuda11.6-1x8-0123abcd"
    document["launch"] = {"started_at": "2026-01-01T11:53:55Z", "seconds": 366.0, "via": "docker"}
    return document


def changed(document: Document, changes: Mapping[str, Any]) -> Record:
    """The record with other values at dotted paths, and the digest of its configuration."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = document
        for part in parts:
            place = place[part]
        if value == DELETE:
            del place[last]
        elif isinstance(last, int) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    document["config_digest"] = config_digest(document["config"])
    return read_record(json.dumps(document).encode())


def found(document: Document, changes: Mapping[str, Any]) -> str:
    record = changed(document, changes)
    return "; ".join(problems(record, CATALOG.cases[record.case]))


def metric(name: str, field: str = "value") -> str:
    """The path of a metric's field in `a100`."""
    return f"metrics.{next(i for i, m in enumerate(a100()['metrics']) if m['name'] == name)}.{field}"


# Records that are as they were measured


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_record_agrees_with_itself(name: str) -> None:
    document = measured(name)
    assert found(document, {}) == ""
    derived = derived_conditions(CATALOG.cases[document["case"]], document["config"])
    known = {key: value for key, value in derived.items() if not isinstance(value, Unknown)}
    assert {key: document["conditions"][key] for key in known} == known
    assert {"model", "batch_size", "sequence_length", "stop_rule", "seed", "data", "weights"} <= set(known)


def test_every_case_has_a_measured_record() -> None:
    assert {measured(name)["case"] for name in MEASURED} == set(CATALOG.cases)


def test_made_up_records_agree_with_themselves() -> None:
    assert found(a100(), {}) == ""
    for path in ROWS.glob("row-*.json"):
        assert found(json.loads(path.read_text(encoding="utf-8")), {}) == "", path.stem


# Records that are not

CONDITIONS: dict[str, tuple[Any, str]] = {
    "device_model": ("NVIDIA A100-SXM4-40GB", "AMD"),
    "devices": (8, "2"),
    "nodes": (2, "1"),
    "division": ("tuned", "faithful"),
    "precision": ("bf16", "fp32"),
    "seed": (5, "0"),
    "stop_rule": ("window of 200 steps", "window of 40 steps"),
    "torch": ("1.12.0", "2.13.0+cpu"),
    "cuda": ("11.6", "null"),
    "batch_size": (32, "8"),
    "gradient_accumulation_steps": (2, "1"),
    "sequence_length": (512, "128"),
    "model": ("distilbert-base-uncased", "distilbert-tiny"),
    "recompute": (True, "false"),
    "optimizer": ("SGD", "AdamW(betas=0.9/0.999, eps=1e-08, weight_decay=0)"),
    "learning_rate": (5e-5, "0.0015"),
    "schedule": ("constant", "linear to zero"),
    "max_epochs": (10, "4"),
    "dropout": ("0.1/0.1/0.2", "0/0/0"),
    "workers": (8, "0"),
    "eval_batch_size": (4, "32"),
    "data": ("synthetic", "shipped"),
    "weights": ("pretrained", "random"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_that_its_record_contradicts_shows_both_sides(name: str) -> None:
    document = measured(CPU)
    value, there = CONDITIONS[name]
    there = document["system"]["devices"][0]["name"] if name == "device_model" else there
    text = found(document, {f"conditions.{name}": value})
    assert f"the condition {name} is {str(value).lower() if value is True else value}, but" in text
    assert there in text


DOCTORED: list[tuple[str | None, dict[str, Any], tuple[str, ...]]] = [
    # A data set from files is neither of those that a configuration names.
    (CPU, {"config.data.source": "files"}, ("the condition data is shipped", "rules out")),
    (PRETRAINING, {**FUSED, "conditions.attention": "none"}, ("the condition attention is none", "rules out")),
    (PRETRAINING, {"conditions.attention": "sdpa"}, ("the condition attention is sdpa", "gives unfused")),
    (GLM, {"conditions.schedule": "constant"}, ("the condition schedule", "linear warm-up")),
    (GLM, {"conditions.evaluation_cadence": "every epoch"}, ("evaluation_cadence", "every 1056 samples")),
    (LORA, {"conditions.peft": "0.4.0"}, ("the condition peft is 0.4.0", "0.21.2")),
    (LORA, {"conditions.lora": "r=4"}, ("the condition lora is r=4", "r=8, alpha=32")),
    # Devices
    (None, {"system.devices.3.name": "NVIDIA H200"}, ("device_model", "NVIDIA A100-SXM4-40GB + NVIDIA H200")),
    (None, {"conditions.driver": "580.65"}, ("the condition driver is 580.65", "470.129.06")),
    (None, {"system.devices.7.uuid": "GPU-0"}, ("counted 2 times", "UUID is GPU-0")),
    (None, {"ranks.7.uuid": "GPU-0"}, ("counted 2 times", "UUID is GPU-0")),
    (None, {"system.devices.7.index": 0}, ("counted 2 times", "index is 0")),
    (None, {"system.devices.7.index": 70}, ("the indices 0, 1, 2, 3, 4, 5, 6, 70", "8 devices")),
    (None, {"system.devices.7.uuid": "gpu-0 "}, ("counted 2 times", "its UUID is gpu-0")),
    (None, {"ranks.7.uuid": "GPU-77"}, ("the UUID of rank 7 is GPU-77", "system.devices has GPU-7")),
    (None, {"telemetry.devices.1": {"index": 0}}, ("counted 2 times", "index in telemetry is 0")),
    (None, {"ranks.7.pid": 16}, ("one process is counted 2 times", "its pid on node 0 is 16")),
    (None, {"ranks.7.host": "elsewhere"}, ("the ranks of node 0 are on 2 hosts", "machine, elsewhere")),
    (None, {"ranks.7.exit": "SIGKILL"}, ("status.state is ok", "rank 7 ended with SIGKILL")),
    (None, {"system.devices.7": DELETE}, ("system.devices has 7", "devices_per_node is 8")),
    (None, {"stack": "cpu"}, ("its stack is cpu", "NVIDIA A100-SXM4-40GB")),
    (CPU, {"stack": "a100-cuda11.6", "system.devices.0.name": "X", "system.devices.1.name": "X",
           "system.cpu.model": "X"}, ("its stack is a100-cuda11.6", "processor X")),
    # Sizes and ranks
    (None, {"config.gpus": 4}, ("config.gpus is 4", "1 x 8")),
    (None, {"config.nodes": 2}, ("config.nodes is 2", "1 x 8")),
    (None, {"system.nodes": 2}, ("the condition nodes is 1", "2 x 8")),
    (None, {"layout.dp": 16}, ("layout is dp16 tp1 pp1, 16 ranks", "1 x 8")),
    (None, {"layout.dp": 4, "layout.tp": 2}, ("layout.tp is 2", "gives 1")),
    (None, {"ranks.7": DELETE}, ("ranks are 0, 1, 2, 3, 4, 5, 6,", "1 x 8")),
    (None, {"ranks.7.rank": 6}, ("5, 6, 6", "1 x 8")),
    (None, {"ranks.7.node": 1}, ("rank 7 is on node 1", "node 0")),
    (None, {"ranks.7.local_rank": 0}, ("rank 7", "node 0 as 7")),
    (None, {"ranks.7.steps": 500}, ("500, 528",)),
    # Precision
    (None, {"software.precision.executed": "fp32"}, ("config.precision is tf32", "ran in fp32")),
    (None, {"software.precision.requested": "fp32"}, ("config.precision is tf32", "requested is fp32")),
    (None, {"software.precision": None}, ("software.precision does not say",)),
    (None, {"software.precision.executed": DELETE}, ("software.precision does not say",)),
    (None, {"software.precision.relative_error": "small"}, ("software.precision does not say",)),
    (CPU, {"software.precision.relative_error": 4e-4}, ("executed is fp32", "4.0e-04")),
    (None, {"flops.peak.precision": "bf16", "flops.peak.flops": 312e12}, ("flops.peak.precision is bf16", "tf32")),
    (None, {"flops.measured_ceiling.precision": "bf16"}, ("flops.measured_ceiling.precision is bf16", "tf32")),
    (CPU, {"config.precision": "tf32", "conditions.precision": "tf32"}, ("its stack is cpu", "precision is tf32")),
    (None, {"config.precision": "fp16"}, ("config.precision is fp16", "tf32, fp32, bf16")),
    # Peaks and formulas
    (None, {"flops.peak.flops": 312e12}, ("flops.peak.flops is 312", "156")),
    (None, {"flops.peak": None}, ("metric mfu", "flops.peak is null")),
    (None, {"flops.peak": None}, ("flops.peak is null", "NVIDIA A100-SXM4-40GB in tf32 156")),
    (None, {"conditions.layout": "dp1 tp8 pp1", "layout": DELETE}, ("the condition layout", "dp8 tp1 pp1")),
    (None, {"flops.formula": "other/v1"}, ("flops.formula is other/v1", "distilbert-matmul/v1")),
    # Names, times and the command line
    (None, {"preset": "tiny"}, ("preset is tiny", "config.preset is reference")),
    (None, {"division": "tuned"}, ("division is tuned", "faithful")),
    (None, {"config.case": "glm"}, ("case is distilbert", "glm")),
    (None, {"created_at": "2026-01-01T10:00:00Z"}, ("2026-01-01T10:00:00Z", "20260101T115400Z")),
    (None, {"created_at": "2026-01-01T11:55:00Z"}, ("took 360.0 s", "only 60 s")),
    (None, {"record_id": "20260101T115400Z-glm-a100-cuda11.6-1x8-0123abcd"}, ("record_id", "distilbert-a100")),
    (None, {"argv.4": "4"}, ("config.gpus is 8", "--gpus 4")),
    (None, {"argv.0": "glm"}, ("case is distilbert", "glm")),
    (None, {"argv.5": "glm"}, ("case is distilbert", "says distilbert glm")),
    (None, {"argv.4": "8.0"}, ("config.gpus is 8", "--gpus 8.0")),
    (None, {"argv.5": "--seed=+7"}, ("config.seed is 0", "--seed +7")),
    (None, {"argv.5": "--describe"}, ("says --describe", "nothing runs")),
    (None, {"argv.5": "--steps=200"}, ("window_steps is null", "--steps: 200")),
    (None, {"argv.5": "--seed=3"}, ("config.seed is 0", "--seed 3")),
    (None, {"argv.5": "--precision=bf16"}, ("config.precision is tf32", "--precision bf16")),
    (None, {"argv.5": "--preset=tiny"}, ("config.preset is reference", "--preset tiny")),
    (None, {"argv.5": "--set=batch_size=96"}, ("train.batch_size is 32", "batch_size 96")),
    (None, {"argv.5": "--data=synthetic"}, ("config.data.source", "--data synthetic")),
    (CPU, {"argv.5": "--max-samples=320"}, ("window_steps is 40", "--max-samples: 20")),
    # The published size
    (None, {"config.model.layers": 2}, ("config.model.layers is 2", "reference has 6")),
    (CPU, {"config.model.dim": 32}, ("config.model.dim is 32", "the preset tiny has 64")),
    (CPU, {"config.data.sequence_length": 64}, ("sequence_length is 64", "the preset tiny has 128")),
    (None, {"config.train.warmup_steps": 100, "window.first_step": 100}, ("warmup_steps is 100", "reference has 20")),
    (None, {"config.model.extra": 1}, ("config.model.extra is not in the preset",)),
    (None, {"config.model.heads": DELETE}, ("config.model.heads is not in its configuration",)),
    (None, {"config.train.batch_size": 96, "conditions.batch_size": 96}, ("train.batch_size is 96", "has 32")),
    (None, {"flagbench.version": "0.0.9", "config.train.batch_size": DELETE}, ("batch_size is 32", "does not give")),
    (None, {"flagbench.version": "0.0.9", "config.model.layers": 2}, ("config.model.layers is 2", "0.0.9")),
    # Steps and the work they did
    (CPU, {"window.steps": 30}, ("window.steps is 30", "window_steps 40")),
    (CPU, {"window.first_step": 5}, ("window.first_step is 5", "warmup_steps 10")),
    (CPU, {"work.steps": 500}, ("work.steps is 500", "50")),
    (None, {"window.steps": 600}, ("ends with step 620", "528")),
    (None, {"work.samples_executed": 10**6}, ("samples_executed is 1000000", "135168")),
    (None, {"work.samples_published_count": 67584}, ("samples_published_count is 67584", "135168")),
    (None, {"window.samples": 10**6}, ("window.samples is 1000000", "130048")),
    (None, {"work.tokens_executed": 10**6}, ("tokens_executed is 1000000", "134698 samples of 512")),
    (GLM, {"work.tokens_executed": 800 * 52 * 11}, ("tokens_executed", "800 samples of 52")),
    (None, {"work.tokens_useful": 10**9}, ("tokens_useful is 1000000000", "tokens_executed is")),
    (None, {"work.unit": "tokens"}, ("work.unit is tokens", "samples")),
    (None, {"window.rank": 8}, ("window.rank is 8", "8 ranks")),
    # How it ended
    (None, {"status.exit_code": 4}, ("state is ok", "exit_code 4")),
    (None, {"status.phase": "train"}, ("state is ok", "phase is train")),
    (None, {"status.reason": "out of memory"}, ("state is ok", "a reason: out of memory")),
    (None, {"quality.resumed": {"step": 8}}, ("resumed is set", "does not say --resume")),
    (None, {"quality.resumed": {"step": 8}, "argv.6": "--resume=/out"}, ("metric p_whole", "it was resumed")),
    (None, {"quality.resumed": {"step": 8}, "argv.6": "--resume=/out"}, ("distilbert resumes nothing",)),
    (None, {"argv.6": "--resume=/out"}, ("resumed is null", "says --resume")),
    (CPU, {"metrics.0": E2E}, ("the metric e2e_time of a whole run", "window_steps 40")),
    # Checks
    (None, {"quality.checks": []}, ("has no checks",)),
    (None, {"quality": None}, ("has no checks",)),
    (None, {"quality.checks.0": DELETE}, ("requires", "precision")),
    (None, {"quality.checks.3": DELETE}, ("requires", "ranks_in_step")),
    (None, {"quality.checks.6": DELETE}, ("requires", "evaluated")),
    (None, {"quality.checks.7": DELETE}, ("requires", "learned")),
    (CPU, {"quality.checks.6": {"name": "steps", "ok": True, "detail": "again"}}, ("the check steps is there 2",)),
    # Physics
    (None, {metric("acc"): 1.2}, ("acc is 1.2", "fraction")),
    (None, {metric("allocator_peak"): -1}, ("allocator_peak is -1",)),
    (None, {"system.devices.0.memory_bytes": 20 * GIB}, ("has 20 GiB", "40")),
    (None, {"telemetry.devices.0.name": "NVIDIA A100-SXM4-80GB"}, ("SXM4-40GB", "by telemetry it is")),
    (None, {"telemetry.devices.0.name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, ("by telemetry it is", "MIG 1g.5gb")),
    (None, {metric("hfu"): 1.2}, ("hfu is 1.2", "peak")),
    (None, {metric("mfu"): 0.5}, ("mfu is 0.5, more than hfu",)),
    (None, {metric("mfu_useful"): 0.9}, ("mfu_useful is 0.9, more than mfu",)),
    (None, {"flops.executed": 1e20}, ("FLOP/s per device, above the peak of 1.56e+14",)),
    (None, {"flops.recomputed": 1e20}, ("FLOP/s per device, above the peak of 1.56e+14",)),
    (None, {"flops.useful": 1e17}, ("flops.useful is 1e+17", "flops.executed")),
    (None, {"flops.measured_ceiling.flops": 2e14}, ("measured_ceiling is 2e+14", "1.56e+14")),
    (None, {metric("mem_peak"): 45.0}, ("mem_peak is 45 GiB", "40")),
    (None, {metric("allocator_peak"): 45.0}, ("allocator_peak is 45 GiB", "40")),
    (CPU, {"system.devices.0.memory_bytes": 1, "system.devices.1.memory_bytes": 1}, ("mem_peak", "9.313e-10")),
    (None, {"system.devices.0.memory_bytes": 80 * GIB}, ("has 80 GiB", "40")),
    (None, {"telemetry.devices.0.mem_used_max_bytes": 41 * GIB}, ("mem_used_max_bytes of 41 GiB", "40")),
    (None, {"telemetry.devices.0.power_max_w": 500}, ("power_max_w of 500", "400")),
    (None, {"telemetry.devices.0.power_mean_w": 430}, ("power_mean_w of 430", "400")),
    (None, {"telemetry.devices.0.power_mean_w": 416}, ("mean power of 416", "415")),
    (None, {"telemetry.devices.0.power_mean_w": 0}, ("power_mean_w of 0", "a device that works has more")),
    (None, {"telemetry.devices.0.power_limit_w": 500}, ("power_limit_w of 500", "400")),
    (None, {"telemetry.devices.0.energy_j": 50}, ("50 J in 90 s", "a mean power of 340 W")),
    (None, {"telemetry.devices.0.energy_seconds": 1e3, "telemetry.devices.0.energy_j": 3e5}, ("1000 s", "360 s")),
    (None, {"telemetry.devices.0.energy_j": 0, "telemetry.devices.0.power_mean_w": None}, ("0 J in 90 s",)),
    (None, {"telemetry.devices.0.sm_clock_min_mhz": 1400}, ("lowest clock of 1400", "mean of 1380")),
    (None, {"telemetry.devices.0.sm_clock_mean_mhz": -1}, ("sm_clock_mean_mhz of -1",)),
    (None, {"telemetry.devices.0.energy_j": 50000}, ("50000 J in 90 s", "400")),
    (None, {"telemetry.devices.0.sm_clock_mean_mhz": 1980}, ("sm_clock_mean_mhz of 1980", "1410")),
    (None, {"telemetry.devices.0.temperature_max_c": 300}, ("temperature of 300",)),
    (None, {"telemetry.devices.0.util_mean": 1.5}, ("utilisation of 1.5",)),
    (None, {"telemetry.devices.0.util_mean": -0.5}, ("utilisation of -0.5",)),
    (None, {"flops.executed": 1e9, "flops.useful": 1e9, "window.seconds": 5.0}, ("above the peak of 1.56e+14",)),
    (None, {"metrics.10": {**COPY, "value": 1600.0}}, ("1600 GB/s", "1555")),
    (None, {"metrics.10": {**COPY, "value": 12.0, "unit": "TiB/s", "scope": "job"}}, ("12 TiB/s", "1555")),
    # Times
    (None, {"ranks.3.data_wait_total": 100.0}, ("data_wait_total of a rank is 100.0", "85.0")),
    (None, {"timing.train": 60.0}, ("timing.step is 71.0", "timing.train")),
    (None, {"timing.eval": 20.0}, ("timing.step and timing.eval are 91.0", "85.0")),
    (None, {"timing.data_wait": 90.0}, ("timing.data_wait is 90.0", "85.0")),
    (None, {"timing.init": 300.0}, ("phases of its timing are 385.0", "360.0")),
    (CPU, {"window.host_seconds": 2.0}, ("window.host_seconds is 2.0", "timing.train")),
    (CPU, {"ranks.1.processor_seconds": 900.0}, ("rank 1 ran or waited 900 s, but its run took",)),
    (CPU, {"telemetry.cpu.mem_used_max_bytes": 2**50}, ("telemetry.cpu has 1.049e+06 GiB in use",)),
    (None, {"launch.seconds": 300.0}, ("took 360.000 s", "measured 300.000 s")),
    (None, {"timing.checkpoint": 100.0}, ("took 460.000 s", "measured 366.000 s")),
    (None, {"launch.started_at": "2026-02-31T11:53:55Z"}, ("2026-02-31T11:53:55Z", "not a time")),
    (None, {"launch.started_at": "2026-01-01T13:30:00Z"}, ("created_at", "2026-01-01T13:30:00Z")),
    (None, {"launch.started_at": "2026-01-01T09:00:00Z"}, ("10800 s after", "366.000 s")),
    (None, {"system.clock_set_seconds": 7200.0}, ("before its run began", "its launcher started it at")),
]  # fmt: skip


@pytest.mark.parametrize(("base", "changes", "words"), DOCTORED, ids=lambda value: str(value)[:60])
def test_a_doctored_record_is_invalid_and_shows_both_sides(
    base: str | None, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    document = a100() if base is None else measured(base)
    text = found(document, changes)
    for word in words:
        assert word in text
    record = changed(document, changes)
    case = CATALOG.cases[record.case]
    claim = next(claim for claim in CATALOG.claims.values() if claim.case == case.name)
    assert verify_claim([record], claim, case).verdict is Verdict.INVALID


HONEST: list[tuple[str | None, dict[str, Any]]] = [
    (None, {"conditions.data": "files"}),
    (None, {"launch": DELETE}),
    # The time of day was set during the run, and two machines' clocks drift apart.
    (None, {"created_at": "2026-01-01T04:00:00Z", "system.clock_set_seconds": -28800.0}),
    (None, {"created_at": "2026-01-01T20:00:00Z", "system.clock_set_seconds": 28800.0}),
    (None, {"launch.seconds": 359.97}),
    (None, {"layout": DELETE}),
    (None, {"argv": []}),
    (None, {"argv": [], "config.train.learning_rate": 1e-4, "conditions.learning_rate": 1e-4}),
    (None, {"system.devices.0.uuid": None, "system.devices.1.uuid": None}),
    (None, {"flagbench.version": "0.0.9", "config.train.new": 1, "config.eval.initial": DELETE}),
    (None, {"telemetry.devices.0.power_max_w": 440}),
    (None, {"metrics.10": {**COPY, "value": 1328.0}}),
    (None, {"telemetry.devices.0.name": "A100-SXM4-40GB"}),
    (None, {"ranks.7.exit": "exit 0", "ranks.6.uuid": None}),
    (None, {"conditions.layout": "dp8 tp1 pp1"}),
    (CPU, {"record_id": "20260101-another-form"}),
    (CPU, {"record_id": "20261122T142506Z-distilbert-cpu-1x2-0a7cecc7", "timing.e2e": 900.0}),
    (LORA, {"conditions.peft": "0.21.2+local"}),
    (PRETRAINING, {**FUSED, "conditions.attention": "sdpa", "conditions.recompute": "none"}),
    (PRETRAINING, FUSED),  # before torch 2.0: what is asked for is not there
]


@pytest.mark.parametrize(("base", "changes"), HONEST, ids=lambda value: str(value)[:60])
def test_what_contradicts_nothing_is_not_refused(base: str | None, changes: dict[str, Any]) -> None:
    assert found(a100() if base is None else measured(base), changes) == ""


@pytest.mark.parametrize("value", [None, [], {}, "x", -1, 1e150, True, 10**30, [[[]]]])
@pytest.mark.parametrize(
    "path", ["config.train", "config.data.sequence_length", "config.train.batch_size", "config.model"]
)
def test_a_value_of_any_kind_is_a_clause_and_no_crash(path: str, value: Any) -> None:
    for document in (a100(), measured(GLM)):
        record = changed(document, {path: value})
        assert list(problems(record, CATALOG.cases[record.case]))
