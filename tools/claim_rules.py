"""Rules over the rows of manifests/claims: numbers of a row, or of two rows, that cannot both be right.

A printed number stands for an interval: 36.5 is anything from 36.45 to 36.55. A rule finds only what no value of it
explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from enum import Enum
from itertools import combinations, pairwise, permutations
from typing import Any

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim, printed_number
from flagbench.verdict.derivation import Unknown, Value, derived_conditions, same
from flagbench_core.case_kinds import kind_of
from flagbench_core.config import preset_of, with_settings
from flagbench_core.flops import batch_of

TOLERANCE = 1.01
"""Two runs differ by about as much without any reason."""
START_S = 300.0
"""Seconds that imports, process groups, data and weights may take. The longest that a row leaves is 133 s."""
ORDERS = (("p_core", "p_train", "p_whole"), ("p_infer_core", "p_infer_whole"))
"""Speeds that divide the same samples by more and more of a run's time."""
SPEEDS = ("p_core", "tokens_per_second_per_device", "p_infer_core", "p_train", "p_whole", "p_infer_whole")
SAME_RUN = (
    *("device_model", "precision", "batch_size", "sequence_length", "gradient_accumulation_steps", "recompute"),
    *("attention", "dropout", "layout", "stop_rule", "torch", "cuda", "driver"),
)
"""Conditions that rows of different numbers of devices share if their speeds can be compared."""


class Fit(str, Enum):
    """How a printed utilisation comes from the computed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    ROUNDED_UP = "rounded up"
    NONE = "does not fit"


FAULTS = {Fit.TRUNCATED: "mfu-truncated", Fit.ROUNDED_UP: "mfu-rounding", Fit.NONE: "mfu-does-not-fit"}


@dataclass(frozen=True)
class Finding:
    """Two values of a published table that cannot both be right."""

    file: str
    row: str
    """The claim's id, or the row's number in its file."""
    field: str
    rule: str
    published: str
    expected: str
    """What says otherwise."""

    def __str__(self) -> str:
        return f"{self.file}: {self.row}: {self.field}: {self.rule}: {self.published}, but {self.expected}"


@dataclass(frozen=True)
class Number:
    """A printed number, and the interval of values that are rounded to it."""

    text: str
    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Number:
        """The same number in another unit; `factor` is positive."""
        return Number(self.text, self.value * factor, self.low * factor, self.high * factor)


def read_number(text: str) -> Number:
    """A number as printed, `36.1%` as 0.361."""
    number = printed_number(text)
    if number is None:
        raise ValueError(f"{text!r} is not a number")
    value = float(number)
    half = 10.0 ** int(number.as_tuple().exponent) / 2
    return Number(text, value, value - half, value + half)


@dataclass(frozen=True)
class Row:
    """A claim with its case and its device."""

    claim: Claim
    case: Case
    device: DeviceModel | None
    """None if no manifest in devices/ has its name."""

    @property
    def devices(self) -> int:
        return self.claim.run.nodes * self.claim.run.gpus

    @property
    def preset(self) -> dict[str, Any]:
        """The configuration of the case that the row is a run of."""
        return preset_of(self.case.presets, self.claim.run.preset)

    @property
    def peak(self) -> float | None:
        """The device's peak in the precision that was executed, FLOP/s; None if it is not published."""
        if self.device is None:
            return None
        return self.device.flops.get(self.claim.precision.executed)

    def number(self, name: str) -> Number | None:
        """A metric as printed; None where nothing was measured: launchers print -1 for what they lack."""
        metric = self.claim.metric(name)
        if metric is None or metric.value <= 0:
            return None
        return read_number(metric.printed or str(metric.value))

    def per_device(self, name: str) -> Number | None:
        """A speed of one device."""
        number, metric = self.number(name), self.claim.metric(name)
        if number is None or metric is None or metric.scope == "device":
            return number
        return number.scaled(1 / self.devices)

    def finding(self, field: str, rule: str, published: str, expected: str) -> Finding:
        """A finding of this row."""
        return Finding(f"manifests/claims/{self.claim.case}.yaml", self.claim.id, field, rule, published, expected)


def read_rows(catalog: Catalog, case: Case) -> list[Row]:
    """The claims of a case."""
    rows = []
    for claim in catalog.claims.values():
        if claim.case == case.name:
            rows.append(Row(claim, case.with_gate_among(claim.metrics), catalog.devices.get(claim.device_id or "")))
    return rows


@dataclass(frozen=True)
class Utilisation:
    """A printed utilisation beside the one that its row's throughput gives; both are fractions.

    A publisher's utilisation is `throughput of a device x FLOPs it counts for a unit / peak it divides by`; all three
    are its own choice, and a case's manifest has them under `flops.published`.
    """

    claim: str
    printed: Decimal
    computed: float

    @property
    def fit(self) -> Fit:
        """Which rounding of the computed value to the digits of the printed one gives it."""
        # A float's last bits are not the publisher's: 0.3605 must not read as 0.36049999.
        exact = Decimal(f"{self.computed:.12g}")
        if exact.quantize(self.printed, ROUND_HALF_UP) == self.printed:
            return Fit.ROUNDED
        if exact.quantize(self.printed, ROUND_DOWN) == self.printed:
            return Fit.TRUNCATED
        last_digit = Decimal(1).scaleb(int(self.printed.as_tuple().exponent))
        if abs(self.printed - exact) < last_digit:
            return Fit.ROUNDED_UP
        return Fit.NONE


def recompute_utilisation(row: Row) -> Utilisation | None:
    """The published utilisation of a row, recomputed; None if the row or its case lacks what it is computed from."""
    formula, number = row.case.published_formula, row.number("mfu")
    if formula is None or number is None:
        return None
    printed = printed_number(number.text)
    if printed is None:
        return None
    peak = formula.peak_of(row.claim.precision.executed, row.peak)
    for metric in row.claim.metrics:
        spec, speed = row.case.metric(metric.name), row.per_device(metric.name)
        is_throughput = metric.name == formula.metric or (spec is not None and spec.held_by == formula.metric)
        if is_throughput and speed is not None and peak is not None:
            return Utilisation(row.claim.id, printed, speed.value * formula.flops_per_unit / peak)
    return None


def lint_claims(rows: Sequence[Row]) -> Iterator[Finding]:
    """Apply all rules to the rows of a case."""
    for row in rows:
        for rule in ROW_RULES:
            yield from rule(row)
    for table_rule in TABLE_RULES:
        yield from table_rule(rows)


def possible(row: Row) -> Iterator[Finding]:
    """A measurement is positive, and a utilisation or accuracy is at most 1."""
    for metric in row.claim.metrics:
        if metric.value <= 0 and metric.name != "loss":
            yield row.finding(metric.name, "not-positive", f"{metric.value}", "a measurement is positive")
        if metric.value > 1 and metric.name in ("mfu", "acc"):
            yield row.finding(metric.name, "above-one", f"{metric.value}", "a fraction is at most 1")


def run_conditions(row: Row) -> Iterator[Finding]:
    """The conditions of a row are those of its run, and its precision is the one that was executed."""
    for name, (published, derived) in contradicted(row.claim, row.case).items():
        yield row.finding(name, "contradiction", f"the condition is {published}", f"a run of the row has {derived}")
    precision, executed = row.claim.conditions.get("precision"), row.claim.precision.executed
    if precision not in (None, NOT_PUBLISHED, executed):
        yield row.finding("precision", "contradiction", f"the condition is {precision}", f"{executed} was executed")


def contradicted(claim: Claim, case: Case) -> dict[str, tuple[Scalar, Value]]:
    """The conditions of a row that no run of it can have: the published value, and that of its `run` and its case."""
    run = claim.run
    config = with_settings(case.raw, run.preset, run.set)
    config[kind_of(config)]["window_steps"] = None
    config.update(nodes=run.nodes, gpus=run.gpus, precision=run.precision, division=run.division)
    conditions: dict[str, tuple[Scalar, Value]] = {}
    for name, derived in derived_conditions(case, config).items():
        published = claim.conditions.get(name, NOT_PUBLISHED)
        if published == NOT_PUBLISHED or isinstance(derived, Unknown):
            continue
        if not same(published, derived):
            conditions[name] = (published, derived)
    return conditions


def layout(row: Row) -> Iterator[Finding]:
    """The degrees of a layout, `dp1 tp4 pp8`, multiply to the number of devices."""
    text = str(row.claim.conditions.get("layout", ""))
    degrees = [int(degree) for degree in re.findall(r"\d+", text)]
    if degrees and math.prod(degrees) != row.devices:
        yield row.finding("layout", "contradiction", text, f"the run has {row.devices} devices")


def gate(row: Row) -> Iterator[Finding]:
    """A row has the metric that decides whether its case is reproduced, and says what it depends on."""
    name = row.case.gate
    if row.number(name) is None:
        yield row.finding(name, "gate-missing", NOT_PUBLISHED, "a verdict needs it")
    metric = row.case.metric(name)
    if metric is None:
        return
    for condition in metric.depends_on:
        # No publisher of GLM says how many candidate answers its samples had.
        if row.claim.conditions.get(condition) == NOT_PUBLISHED and condition != "choices":
            yield row.finding(condition, "missing-condition", NOT_PUBLISHED, f"{name} depends on it")


def speeds_in_order(row: Row) -> Iterator[Finding]:
    """p_core >= p_train >= p_whole, and the same for inference."""
    for order in ORDERS:
        published = [name for name in order if row.number(name) is not None]
        for name, slower_name in pairwise(published):
            faster, slower = row.number(name), row.number(slower_name)
            if faster and slower and faster.high < slower.low:
                expected = f"{slower_name}, which includes more of the time, is {slower.text}"
                yield row.finding(name, "rates-in-order", faster.text, expected)


def memory(row: Row) -> Iterator[Finding]:
    """The total memory is the device's (tools print up to 5 % less), and no more than that is used."""
    metric = row.claim.metric("mem_peak")
    if metric is None:
        return
    total = metric.of
    if row.device is not None:
        total = row.device.memory_gib
        if metric.of is not None and abs(metric.of / total - 1) > 0.05:
            yield row.finding("mem_peak", "memory-of-another-card", f"{metric.of:g} GiB", f"the device has {total:g}")
    if total is not None and metric.value > total:
        yield row.finding("mem_peak", "memory-above-card", f"{metric.value:g} GiB", f"there are {total:g}")


def flops_of_unit(row: Row) -> list[float]:
    """FLOPs that publishers count for a sample or a token: every matrix product, or so many for each parameter and
    token (6; 2 for inference, 4 for LoRA: Chowdhery et al. 2022, PaLM, app. B). Empty if the case counts none.
    """
    length = row.claim.count("sequence_length")
    if row.case.count_flops is None or length is None:
        return []
    flops = row.case.count_flops(row.preset["model"], batch_of(1, length))
    per_parameter = 2 * round(flops.executed / flops.forward)
    of_parameters = per_parameter * length * (flops.weights + flops.embeddings)
    units = 1
    if row.case.unit == "tokens":
        units = length
    return [flops.executed / units, of_parameters / units]


def above_peak(row: Row) -> Iterator[Finding]:
    """The speed of a device times the FLOPs of a unit, by the count that is lowest, is at most its peak."""
    counts = flops_of_unit(row)
    if not counts or row.peak is None:
        return
    for name in SPEEDS:
        speed = row.per_device(name)
        if speed is not None and speed.low * min(counts) > row.peak:
            published = f"{speed.value:.5g} of a device is {speed.value * min(counts):.4g} FLOP/s"
            yield row.finding(name, "above-peak", published, f"its peak is {row.peak:.4g}")


def utilisation(row: Row) -> Iterator[Finding]:
    """A utilisation follows from the speed by its publisher's formula, and from the device's own peak as well."""
    printed, recomputed = row.number("mfu"), recompute_utilisation(row)
    if printed is None or recomputed is None:
        return
    if recomputed.fit in FAULTS:
        follows = f"the publisher's formula gives {recomputed.computed:.5f}: {recomputed.fit.value}"
        yield row.finding("mfu", FAULTS[recomputed.fit], printed.text, follows)
    speed = row.per_device(row.case.gate)
    if speed is None or row.peak is None:
        return
    utilisations = [speed.value * flops / row.peak for flops in flops_of_unit(row)]
    # Publishers round the number of parameters, by less than 1 %, and some cut off the last digit of the result.
    cut_off = printed.value + (printed.high - printed.low)
    fits = [value * 1.01 >= printed.low and value * 0.99 <= cut_off for value in utilisations]
    if "choices" in row.claim.conditions or not any(fits):
        counted = f"the case's FLOPs over the device's peak give {utilisations[0]:.3f}"
        yield row.finding("mfu", "mfu-formula", printed.text, counted)


def padding_counted(row: Row) -> Iterator[Finding]:
    """Tokens/s without padding, times the run's time, are much fewer than examples times padded length."""
    speed, time = row.number("p_infer_whole"), row.number("e2e_time")
    if row.case.unit != "tokens" or speed is None or time is None:
        return
    data = row.preset["data"]
    tokens, padded = speed.value * time.value, data["examples"] * data["sequence_length"]
    if tokens >= 0.8 * padded:
        yield row.finding(row.case.gate, "padding-counted", f"{tokens:.4g} tokens", f"{padded:.4g} are with padding")


def accuracy(row: Row) -> Iterator[Finding]:
    """A run has reached the accuracy that ends it."""
    target, reached = row.preset.get("train", {}).get("target_acc"), row.number("acc")
    if target is not None and reached is not None and reached.high < target:
        yield row.finding("acc", "not-converged", reached.text, f"the target that ends a run is {target:g}")


def end_to_end(row: Row) -> Iterator[Finding]:
    """e2e_time is a whole number of periods at p_whole, up to the limit of the stop rule, and a start.

    A period is an epoch, or the samples between two evaluations.
    """
    time, speed, batch = row.number("e2e_time"), row.number("p_whole"), row.claim.count("batch_size")
    limit = re.search(r"(\d+) (epochs|samples)$", str(row.claim.conditions.get("stop_rule", "")))
    examples = row.preset["data"].get("train_examples")
    if time is None or speed is None or batch is None or limit is None or examples is None:
        return
    batch *= (row.claim.count("gradient_accumulation_steps") or 1) * row.devices
    # Of an epoch, each rank counts its part in whole batches.
    fewest, most = examples, math.ceil(examples / batch) * batch
    if "evaluate_every_samples" in row.preset["train"]:
        fewest = most = math.ceil(row.preset["train"]["evaluate_every_samples"] / batch) * batch
    samples = int(limit[1])
    if limit[2] == "epochs":
        samples *= examples
    periods = samples / fewest

    shortest, longest = fewest / speed.high, most / speed.low
    if time.high < shortest:
        takes = f"{fewest} samples at p_whole take {shortest:.1f} s"
        yield row.finding("e2e_time", "e2e-too-short", f"{time.text} s", takes)
    whole = round(time.value * speed.value / most)
    # A speed of few digits has a whole number of periods for every time.
    exact = whole * most / speed.high <= time.high and time.low <= whole * longest
    if exact and 1 <= whole <= periods and speed.high - speed.low < 0.01 * speed.value:
        takes = f"{whole} x {most} samples at p_whole take as much, without any start"
        yield row.finding("e2e_time", "e2e-is-train-time", f"{time.text} s", takes)
    latest = periods * longest + START_S
    if time.low > latest:
        yield row.finding("e2e_time", "e2e-too-long", f"{time.text} s", f"the stop rule ends it by {latest:.0f} s")


def utilisation_blank(rows: Sequence[Row]) -> Iterator[Finding]:
    """A row with the speed has a utilisation if another row of its device has one."""
    devices = {row.claim.conditions.get("device_model") for row in rows if row.number("mfu") is not None}
    for row in rows:
        lacks = row.number(row.case.gate) is not None and row.number("mfu") is None
        if lacks and row.claim.conditions.get("device_model") in devices:
            yield row.finding("mfu", "mfu-blank", NOT_PUBLISHED, "other rows of the device have it")


def scaling(rows: Sequence[Row]) -> Iterator[Finding]:
    """A device of a larger job is not faster than one of a smaller job of the same work."""
    for row, smaller in permutations(rows, 2):
        if row.devices <= smaller.devices or not is_same_work(row.claim, smaller.claim):
            continue
        for name in SPEEDS:
            speed, speed_of_smaller = row.per_device(name), smaller.per_device(name)
            if speed and speed_of_smaller and speed.low > speed_of_smaller.high * TOLERANCE:
                published = f"{speed.value:.5g} on each of {row.devices} devices"
                expected = f"{speed_of_smaller.value:.5g} on each of {smaller.devices} in {smaller.claim.id}"
                yield row.finding(name, "scaling", published, expected)


def is_same_work(first: Claim, second: Claim) -> bool:
    """Whether rows of different numbers of devices can be compared."""
    return all(first.conditions.get(name) == second.conditions.get(name) for name in SAME_RUN)


def copied(rows: Sequence[Row]) -> Iterator[Finding]:
    """Two rows do not measure two speeds to the same digits.

    Nor do devices of different memory use the same memory to the digit: libraries and allocators differ.
    """
    for row, later in combinations(rows, 2):
        speeds = []
        for name in (*SPEEDS, "e2e_time"):
            number = row.number(name)
            if number is not None and have_same_digits(number, later.number(name)):
                speeds.append(f"{name} {number.text}")
        if len(speeds) > 1:
            yield later.finding("row", "copied-row", ", ".join(speeds), f"{row.claim.id} has the same digits")
            continue
        used = row.number("mem_peak")
        memory, later_memory = row.claim.metric("mem_peak"), later.claim.metric("mem_peak")
        if used is None or memory is None or later_memory is None or memory.of == later_memory.of:
            continue
        if have_same_digits(used, later.number("mem_peak")):
            published = f"mem_peak {used.text}"
            yield later.finding("mem_peak", "copied-memory", published, f"{row.claim.id} has it of {memory.of:g}")


def have_same_digits(first: Number | None, second: Number | None) -> bool:
    """Whether two numbers are printed alike, with more digits than are the same by chance: more than two."""
    if first is None or second is None or first.text != second.text:
        return False
    return first.high - first.low <= 0.01 * first.value


ROW_RULES = (
    possible,
    run_conditions,
    layout,
    gate,
    speeds_in_order,
    memory,
    above_peak,
    utilisation,
    padding_counted,
    accuracy,
    end_to_end,
)
TABLE_RULES = (utilisation_blank, scaling, copied)
