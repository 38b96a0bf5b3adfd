"""Every rule on a record: what a broken tool, a wrong set-up or a sick machine does, and the rule that finds it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.verdict import Verdict
from flagbench.verdict.derivation import Unknown, derived_conditions
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import RULES, Consequence, Needs, check_record
from flagbench.verdict.rules.table import rule
from flagbench.verdict.subject import Subject
from flagbench_core import __version__
from flagbench_core.config import digest as config_digest
from forging import column, consistent, each, losses, scale, sealed

from .conftest import MEASURED, REPLAYS, ROWS, Raw, held, made, read, verified

TESTED = "records"
GIB = 2**30
DELETE = "(left out)"
CPU, LORA, GLM, PRETRAINING = "run-distilbert-2", "run-lora-1", "run-glm-2", "run-pretraining-2"
A100 = "eight A100"
ROOFS = "run-roofs-2"
FOUR_ADAPTERS = "run-lora-llama3.1"
"""Of an earlier version, whose configurations lack `model.lora.projections`."""
PRODUCT = {"name": "matmul_tf32", "operation": "matmul", "precision": "tf32", "shape": [8192, 8192, 8192],
           "unit": "FLOP/s", "repeats": 20, "steady": True, "spread": 0.01, "stdev": 1e12}  # fmt: skip
COPY = {"name": "memory_bandwidth", "operation": "copy", "bytes": 2**32, "unit": "B/s", "repeats": 20, "steady": True,
        "spread": 0.01, "stdev": 1e9}  # fmt: skip
CASES = {"run-aquila-1", CPU, LORA, GLM, PRETRAINING, ROOFS, FOUR_ADAPTERS, "run-lora-qwen2.5"}
CASES |= {"run-llama3-8b", "run-llama3-8b-rope", "run-serve-llama3.1-8b"}
WINDOW_ENERGY: Raw = {"joules": 24_000.0, "source": "counter", "steps": 200, "seconds": 60.0, "error_j": 700.0}
ADDED = {
    "launch": {"started_at": "2026-01-01T11:53:55Z", "seconds": 366.0, "via": "docker"},
    "telemetry": {
        "devices": [
            {
                **{"index": 0, "mem_used_max_bytes": 14 * GIB, "temperature_max_c": 71, "util_mean": 0.97},
                **{"power_mean_w": 340.0, "power_max_w": 415.0, "energy_j": 30600.0, "energy_seconds": 90.0},
                **{"sm_clock_mean_mhz": 1380.0, "sm_clock_min_mhz": 1095.0, "window_energy": WINDOW_ENERGY},
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
    raw = document(name)
    for path, value in changes.items():
        if path.startswith("@"):
            path = f"metrics.{[m['name'] for m in raw['metrics']].index(path[1:])}.value"
        *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = raw
        for part in parts:
            place = place[part]
        if value == DELETE:
            del place[last]
        elif isinstance(last, int) and last >= len(place):
            place.append(value)
        else:
            place[last] = value
    if "config_digest" not in changes:
        raw["config_digest"] = config_digest(raw["config"])
    return read(raw)


def found(record: Record) -> list[str]:
    """The ids of the rules that find something in the parts of a record, whatever its evidence gives."""
    return [finding.rule for finding in check_record(Subject(record, CATALOG.cases[record.case]))]


@pytest.mark.parametrize("name", sorted(path.stem for path in ROWS.glob("*.json")))
def test_no_rule_finds_anything_in_a_sound_record(name: str) -> None:
    assert found(changed(name, {})) == []


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_no_rule_finds_anything_in_a_record_of_a_device(path: Path) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["flagbench"]["version"] = "0.1"  # of an earlier version, as these records will be
    record = read(raw)
    assert check_record(recompute(record, CATALOG.cases[record.case])) == ()


def family_of(case: Case) -> str:
    """The cases of one family share their code."""
    return case.family or case.name


def test_every_family_has_a_measured_record() -> None:
    measured = [CATALOG.cases[document(name)["case"]] for name in CASES]
    assert {family_of(case) for case in CATALOG.cases.values()} == {family_of(case) for case in measured}


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_condition_of_a_configuration_is_compared(name: str) -> None:
    record = read_record(ROWS / f"{name}.json")
    case = CATALOG.cases[record.case]
    derived = derived_conditions(case, Subject(record, case).config)
    known = {condition: value for condition, value in derived.items() if not isinstance(value, Unknown)}
    assert {condition: record.conditions[condition] for condition in known} == known
    names = {each for group in case.condition_groups.values() for each in group}
    follow = {"model", "batch_size", "sequence_length", "stop_rule", "seed", "data", "weights", "shape"}
    assert follow & names <= set(known)
    for condition in known:
        assert "condition-config" in found(changed(name, {f"conditions.{condition}": "another"}))


FUSED = {"config.train.flash_attention": True}
"""Asks for one kernel for the attention, which PRETRAINING did not."""
DEVICE = "telemetry.devices.0"

EDITED: list[tuple[str, str, dict[str, Any]]] = [
    ("run-ended", A100, {"status.state": "failed", "status.exit_code": 4}),
    ("check-failed", A100, {"quality.checks.0.ok": False}),
    ("config-digest", A100, {"config_digest": "sha256:" + "0" * 64}),
    ("config-digest", A100, {"config_digest": None}),
    # Conditions
    ("condition-config", CPU, {"config.data.source": "files"}),
    # %d would take it for 200
    ("condition-config", A100, {"config.train.window_steps": 200.7, "conditions.stop_rule": "window of 200 steps"}),
    ("condition-config", PRETRAINING, {**FUSED, "conditions.attention": "none"}),
    ("condition-device", A100, {"system.devices.3.name": "NVIDIA H200"}),
    ("condition-software", LORA, {"conditions.peft": "0.4.0"}),
    ("condition-software", A100, {"conditions.torch": "1.12.0"}),
    ("condition-software", A100, {"conditions.driver": "580.65"}),
    ("software-stack", A100,
     {"software.stack_expects.torch": "2.0", "system.image": {"context_digest": "sha256:" + "0" * 64}}),
    ("preset", A100, {"config.model.layers": 2}),
    ("preset", CPU, {"config.model.dim": 32}),
    ("preset", A100, {"config.model.extra": 1}),
    ("preset", A100, {"config.model.heads": DELETE}),
    ("preset", A100, {"flagbench.version": "0.0.9", "config.model.layers": 2}),
    ("preset", FOUR_ADAPTERS, {"config.model.lora.projections": "qkv+o+gate_up+down"}),
    ("formula", A100, {"flops.formula": "other/v1"}),
    ("peak", A100, {"flops.peak.flops": 312e12}),
    ("peak", A100, {"flops.peak.flops": 312e12, "stack": "another"}),
    # Devices, nodes and ranks
    ("device-twice", A100, {"system.devices.7.uuid": "GPU-0"}),
    ("device-twice", A100, {"ranks.7.uuid": "GPU-0"}),
    ("device-twice", CPU, {"system.devices.1.index": 0}),
    ("device-twice", CPU, {"ranks.1.local_rank": 0}),
    ("devices-listed", A100, {"system.devices.7": DELETE}),
    ("device-monitored", A100, {"ranks.7.uuid": "GPU-9"}),
    ("device-monitored", A100, {f"{DEVICE}.name": "NVIDIA H200"}),
    ("stack", A100, {"stack": "cpu"}),
    ("stack", CPU, {"stack": "a100-cuda11.6", "system.devices.0.name": "X", "system.devices.1.name": "X",
                    "system.cpu.model": "X"}),
    ("world-size", A100, {"config.gpus": 4}),
    ("world-size", A100, {"system.nodes": 2}),
    ("world-size", A100, {"layout.dp": 4, "layout.tp": 2}),
    ("world-size", A100, {"conditions.layout": "dp1 tp8 pp1"}),
    ("ranks", A100, {"ranks.7": DELETE}),
    ("ranks", A100, {"ranks.7.exit": "SIGKILL"}),
    ("ranks", A100, {"ranks.7.steps": 100}),
    # Precision
    ("precision", A100, {"software.precision.executed": "fp32"}),
    ("precision", A100, {"software.precision": None}),
    ("precision-error", CPU, {"software.precision.relative_error": 4e-4}),
    ("precision-error", CPU, {"software.precision.relative_error": None}),
    *(("precision-error", A100, {"software.precision": {"executed": name, "relative_error": error}})
      for name, error in (("fp16", 1e-7), ("fp16", 3e-3), ("bf16", 4e-4), ("bf16", 3e-2), ("tf32", 1e-7))),
    # What a device can do
    ("above-peak", A100, {"@hfu": 1.2}),
    ("above-peak", A100, {"flops.executed": 1e20}),
    # No fewer than the case's formula gives
    ("above-peak", A100, {"flops.executed": 1e9, "flops.useful": 1e9, "window.seconds": 1.0}),
    ("ceiling-above-peak", A100, {"flops.measured_ceiling.flops": 2e14}),
    ("ceiling-above-peak", A100, {"measurements": [{**PRODUCT, "rate": 1.6e14}]}),
    ("ceiling-above-peak", A100, {"measurements": [{**PRODUCT, "rate": 1e14, "devices": [1e14, 1.6e14]}]}),
    ("ceiling-above-peak", A100, {"measurements": [{**COPY, "rate": 1.6e12}]}),
    ("device-memory", A100, {"system.devices.0.memory_bytes": 20 * GIB}),
    ("memory-in-use", A100, {"@mem_peak": 45.0}),
    ("memory-in-use", A100, {f"{DEVICE}.mem_used_max_bytes": 2**41}),
    ("board-limits", A100, {f"{DEVICE}.power_max_w": 500}),
    ("board-limits", A100, {f"{DEVICE}.sm_clock_mean_mhz": 1450}),
    ("energy", A100, {f"{DEVICE}.energy_j": 3060.0}),
    ("energy", A100, {f"{DEVICE}.window_energy": {**WINDOW_ENERGY, "joules": 2.1 * 415.0 * 60.0}}),
    # Time
    ("device-clock", A100, {"window.host_seconds": 10.0}),
    ("launch-time", A100, {"launch.seconds": 300.0}),
    ("launch-time", A100, {"timing.checkpoint": 100.0}),
    # Checks
    ("check-missing", A100, {"quality.checks": []}),
    *(("check-missing", A100, {f"quality.checks.{number}": DELETE}) for number in (0, 3, 6, 7, 8)),
]  # fmt: skip
"""The rule, a record, and what is made different in it."""


@pytest.mark.parametrize(("rule", "name", "changes"), EDITED, ids=lambda value: str(value)[:60])
def test_a_rule_finds_what_it_is_for(rule: str, name: str, changes: dict[str, Any]) -> None:
    assert rule in found(changed(name, changes))


SOUND: list[tuple[str, dict[str, Any]]] = [
    (A100, {}),
    (A100, {"conditions.data": "files"}),
    (A100, {"measurements": [{**PRODUCT, "rate": 1.5e14}, {**COPY, "rate": 1.5e12}]}),
    (A100, {"measurements": [{**COPY, "bytes": 2**24, "rate": 4e12}]}),  # within the caches
    (A100, {"launch": DELETE}),
    (A100, {"launch.seconds": 360.97}),  # two machines' clocks drift apart
    (A100, {"layout": DELETE}),
    (A100, {"argv": [], "config.train.learning_rate": 1e-4, "conditions.learning_rate": 1e-4}),
    (A100, {"system.devices.0.uuid": None, "system.devices.1.uuid": None}),
    (A100, {"flagbench.version": "0.0.9", "config.train.new": 1, "config.eval.initial": DELETE}),
    (A100, {"flagbench.version": "9.0", "conditions.device_model": "X",
            **{f"system.devices.{number}.name": "X" for number in range(8)}, f"{DEVICE}.name": "X"}),
    (CPU, {"stack": "a100-cuda11.6", "conditions.device_model": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
           **{f"system.devices.{number}": {"name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "index": number,
                                           "memory_bytes": 20 * GIB} for number in range(2)},
           "telemetry": {"devices": [{"index": 0, "name": "NVIDIA A100-SXM4-40GB",
                                      "mem_used_max_bytes": 30 * GIB}]}}),
    (A100, {f"{DEVICE}.power_max_w": 440}),
    (A100, {f"{DEVICE}.name": "A100-SXM4-40GB"}),
    (A100, {"ranks.7.exit": "exit 0", "ranks.6.uuid": None}),
    (A100, {"conditions.layout": "dp8 tp1 pp1"}),
    (LORA, {"conditions.peft": "0.21.2+local"}),
    (PRETRAINING, {**FUSED, "conditions.attention": "sdpa", "conditions.recompute": "none"}),
    (PRETRAINING, FUSED),  # before torch 2.0: what is asked for is not there
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), SOUND, ids=lambda value: str(value)[:60])
def test_what_contradicts_nothing_is_not_refused(name: str, changes: dict[str, Any]) -> None:
    assert found(changed(name, changes)) == []


def test_a_key_that_a_configuration_lacks_means_what_it_meant() -> None:
    record = read_record(MEASURED / "h100-llama3.1-8b-lora.json")
    subject = recompute(record, CATALOG.cases[record.case])
    assert subject.config["model"]["lora"]["projections"] == "qkv+o+gate_up+down"
    assert subject.config_digest == record.config_digest
    assert record.flops is not None
    assert subject.flops_of_unit == pytest.approx(36.6245e9, rel=1e-5)
    assert record.flops.executed == subject.flops_of_unit * 2 * 32 * 4096  # two steps of the window
    assert subject.not_compared == ("metric mfu_published_formula",)  # which is of seven adapters


@pytest.mark.parametrize(("device", "bounded"), [("NVIDIA GeForce RTX 5090", False), ("NVIDIA L40S", True)])
def test_a_card_may_exceed_a_peak_at_its_boost_clock(device: str, bounded: bool) -> None:
    names = {f"system.devices.{number}.name": device for number in range(8)}
    fast = {"@hfu": 1.2, "flops.measured_ceiling.flops": 2e14, "measurements": [{**PRODUCT, "rate": 2e14}]}
    rules = found(changed(A100, {"stack": "cuda13", **names, **fast}))
    assert ({"above-peak", "ceiling-above-peak"} <= {*rules}) is bounded


@pytest.mark.parametrize("path", ["config.train", "config.data.sequence_length", "config.model"])
def test_a_value_of_any_kind_is_found_and_no_crash(path: str) -> None:
    for name in (A100, GLM):
        for value in (None, [], {}, "x", -1, 1e150, True, 10**30, [[[]]]):
            assert found(changed(name, {path: value}))


# Rules on evidence: the numbers of these records are computed again from it, so that they follow from it.

Edit = Callable[[Raw], object]
DISTILBERT, AQUILA, LLAMA = "distilbert/a100-1x8-fp32", "aquila-33b/a100-1x8-tp8", "llama2-70b/h800-4x8-amp-tp8-pp4"
GLM_A100 = "glm/a100-1x8-fp32"


def flops(name: str, change: Callable[[int], int]) -> Edit:
    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            numbers = span["flops"][name]
            span["flops"][name] = change(numbers) if isinstance(numbers, int) else [*map(change, numbers)]

    return edit


def twice_the_tokens(raw: Raw) -> None:
    for name in ("tokens", "tokens_useful"):
        column(raw, name, lambda tokens: 2 * tokens)


def of_one_choice(raw: Raw) -> None:
    """Two sequences a sample, where the condition says one, with the FLOPs of two."""
    twice_the_tokens(raw)
    flops("executed", lambda each: 2 * each)(raw)
    raw["conditions"]["choices"] = "1 at most, mean 1.0"


def not_a_number(raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        for own in filter(None, span["loss"]):
            own[0] = None


def published_by_one_rank(raw: Raw) -> None:
    column(raw, "samples_published", lambda _: 0)
    column(raw, "samples_published", lambda _: 8 * 32, rank=0)


def counted_by_every_rank(raw: Raw) -> None:
    """Every rank counts the samples of its replica, which one of them should."""
    batch = max(number for (own,) in each(raw, raw["evidence"]["spans"][0], "samples_published") for number in own)
    column(raw, "samples_published", lambda _: batch)


def one_fast_step(raw: Raw) -> None:
    """A step that took a twelfth of its time, which the next one took besides."""
    for span in raw["evidence"]["spans"]:
        ranks, steps = raw["evidence"]["ranks"], span["steps"]
        for name in ("host", "device"):
            own = span["columns"][name]
            own = [own] * ranks if isinstance(own, int) else own
            own = [[each] * steps if isinstance(each, int) else each for each in own]
            moved = [each[3] * 11 // 12 for each in own]
            span["columns"][name] = [
                [*each[:3], each[3] - more, each[4] + more, *each[5:]] for each, more in zip(own, moved, strict=True)
            ]


def stopped(seconds: float) -> Edit:
    """The training took so much longer, in no step."""

    def edit(raw: Raw) -> None:
        evidence = raw["evidence"]
        for name in ("train", "e2e"):
            evidence["timing"][name] += round(seconds * 1e6)
        evidence["durations"]["train"] = [each + round(seconds * 1e6) for each in evidence["durations"]["train"]]

    return edit


def faster_phase(raw: Raw) -> None:
    raw["evidence"]["durations"]["train"][5] //= 2


def accuracy(value: float) -> Edit:
    return lambda raw: raw["quality"]["evaluations"][0].update(accuracy=value, published_accuracy=value)


def chance(value: float) -> Edit:
    """An accuracy of guessing that the check of accuracy was decided by."""
    return lambda raw: next(c for c in raw["quality"]["checks"] if c["name"] == "above_chance").update(
        values={"chance": value}
    )


ON_EVIDENCE: list[tuple[str, str, Edit]] = [
    ("step-without-time", DISTILBERT, lambda raw: column(raw, "device", lambda _: 0, rank=0)),
    ("step-without-time", AQUILA, lambda raw: column(raw, "host", lambda _: 0)),
    ("step-above-peak", DISTILBERT, one_fast_step),
    ("phase-time", DISTILBERT, stopped(2.0)),
    ("phase-time", DISTILBERT, faster_phase),
    ("phase-time", DISTILBERT, lambda raw: raw["evidence"].pop("durations")),
    ("phase-time", AQUILA, lambda raw: scale(raw, 0.6, phases=False)),
    ("work-of-step", DISTILBERT, published_by_one_rank),
    ("work-of-step", LLAMA, counted_by_every_rank),
    ("work-of-step", DISTILBERT, lambda raw: column(raw, "tokens_useful", lambda tokens: 2 * tokens, rank=3)),
    ("flops-of-work", GLM_A100, twice_the_tokens),
    ("work-of-step", GLM_A100, of_one_choice),
    ("flops-of-work", AQUILA, flops("executed", lambda each: each // 3 * 4)),
    ("flops-of-work", GLM_A100, flops("recomputed", lambda each: 0)),
    ("flops-of-work", DISTILBERT, flops("recomputed", lambda each: 10**12)),
    ("work-of-step", GLM_A100, lambda raw: raw["conditions"].update(choices="10 at most, mean 8.9")),
    ("ceiling-above-peak", DISTILBERT, lambda raw: raw["evidence"]["ceilings"].__setitem__(3, 2e14)),
    ("loss-impossible", LLAMA, lambda raw: losses(raw, lambda step, each: each - 9)),
    ("loss-impossible", AQUILA, not_a_number),
    ("loss-constant", LLAMA, lambda raw: losses(raw, lambda step, each: 0.7)),
    ("examples-counted", DISTILBERT, lambda raw: raw["quality"].update(data={"eval_examples": 872})),
    ("check-again", DISTILBERT, lambda raw: losses(raw, lambda step, each: 0.5 + step / 100)),
    ("check-again", DISTILBERT, accuracy(0.05)),
    *(("check-again", DISTILBERT, chance(value)) for value in (-0.1, 1.5)),
]


@pytest.mark.parametrize(("rule", "claim", "edit"), ON_EVIDENCE, ids=[rule for rule, *_ in ON_EVIDENCE])
def test_a_rule_on_evidence_finds_what_it_is_for(rule: str, claim: str, edit: Edit) -> None:
    raw = made(claim)
    edit(raw)
    record = read(consistent(raw))
    subject = recompute(record, CATALOG.cases[record.case])
    assert subject.differences == ()
    assert rule in [finding.rule for finding in check_record(subject)]
    assert verified(raw, claim=claim).verdict is Verdict.INVALID


def test_two_rules_with_one_id() -> None:
    add = rule("run-ended", Needs.RECORD, "")
    with pytest.raises(ValueError, match="run-ended"):
        add(lambda subject: ())


def test_every_rule_on_a_record_is_shown_here() -> None:
    of_a_record = {name for name, rule in RULES.items() if rule.consequence is Consequence.INVALID}
    elsewhere = {"evidence", "numbers"}  # test_recompute.py
    assert {rule for rule, *_ in (*EDITED, *ON_EVIDENCE)} | elsewhere == of_a_record


def test_every_rule_says_whom_it_is_for() -> None:
    assert [name for name, rule in RULES.items() if not rule.why.endswith(".")] == []
    assert len(RULES) <= 90


def test_a_rule_has_five_messages_at_most() -> None:
    record = changed(A100, {f"ranks.{number}.exit": "SIGKILL" for number in range(8)})
    found = [each.rule for each in check_record(Subject(record, CATALOG.cases["distilbert"]))]
    assert found.count("ranks") == 5


def test_an_invalid_record_names_its_rules() -> None:
    result = held(changed(A100, {"config.gpus": 4, "system.devices.7": DELETE}))
    assert (result.verdict, result.verdict.exit_code) == (Verdict.INVALID, 12)
    assert {finding.rule for finding in result.findings} >= {"world-size", "devices-listed"}
    assert "config.gpus is 4" in result.reason


@pytest.mark.parametrize("layers", [[None], [0, 0, 0], "ab", 10**30, {"a": "b"}, True])
def test_a_size_that_is_no_number_costs_no_memory(layers: Any) -> None:
    raw = made()
    raw["config"]["model"]["layers"] = layers
    assert verified(sealed(raw)).verdict is Verdict.INVALID
