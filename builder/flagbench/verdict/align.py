"""Whether two loss curves are aligned, by the rule published for Llama2-70B, and the step from which on they part.

FlagPerf, training/nvidia/llama2_70B-megatron/README.md at 1b5a0303, translated: "Alignment requires that, at the 21st
step and after it, the mean relative error of the losses of all steps against those of the corresponding steps of
NVIDIA is less than 2 %." With A the curve to be checked and B the reference:

    mean over steps s >= 21 of |A(s) - B(s)| / |B(s)|  <  0.02

Steps are counted from 1. Steps of A that B does not have are left out. If A lacks steps of B, the mean is not known.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, to_builtins

from flagbench.errors import FlagbenchError
from flagbench.manifests.fields import Scalar
from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.terminal import brief
from flagbench.verdict.conditions import ConditionResult, compare_conditions, known_conditions
from flagbench.verdict.recompute import recompute
from flagbench.verdict.rules import invalid
from flagbench_core.exit_codes import ExitCode

FROM_STEP = 21
WITHIN = 0.02
LARGEST_ERROR = 1e100
"""Sums of larger ones could overflow."""
SAME_CURVE = frozenset(
    {"attention", "division", "engine", "layout", "memory_monitor", "precision", "recompute", "stop_rule"}
)
"""Conditions that say how a curve is computed, or how far, not which one it is. A difference in them is a reason to
compare curves, and is listed."""
BATCH = ("batch_size", "gradient_accumulation_steps")
"""Conditions whose product with the number of replicas is the samples of a step. Only that has to be equal."""


class Curve(Struct, frozen=True):
    """Losses by step, counted from 1 and ascending; None where a loss is not finite."""

    name: str
    """The record's id, or the name of the file."""
    losses: Mapping[int, float | None]
    cut: int = 0
    """Steps at the end of the run whose losses the record does not have."""
    record: Record | None = None


class Alignment(str, Enum):
    """What `flagbench align` concludes."""

    ALIGNED = "ALIGNED"
    DIVERGED = "DIVERGED"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> ExitCode:
        """The code `flagbench align` ends with: as `verify`, DIVERGED as BELOW."""
        if self is Alignment.ALIGNED:
            return ExitCode.OK
        return ExitCode.BELOW if self is Alignment.DIVERGED else ExitCode[self.name]


class AlignResult(Struct, frozen=True, kw_only=True):
    """Two curves by the rule. Errors are fractions; None where no step has one. `reason` is one sentence."""

    verdict: Alignment
    reason: str
    a: str
    b: str
    case: str | None
    from_step: int
    to_step: int | None
    """The last step that counts; None: the last of the reference."""
    within: float
    compared: int
    """Common steps that count."""
    missing: int
    """Steps of the reference that count, but whose losses are not in both curves."""
    mean_error: float | None
    largest_error: float | None
    largest_error_step: int | None
    diverges_from: int | None
    """The first of all common steps from which on every error exceeds the bound; None if the last one does not."""
    conditions: tuple[ConditionResult, ...]
    """Those that differ or are not known: `here` is A, `expected` is B. None if a curve has no record."""

    @property
    def published_rule(self) -> bool:
        """Whether this is the published rule, and not one with another first step or bound."""
        return self.from_step == FROM_STEP and self.to_step is None and self.within == WITHIN

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench align --json` prints."""
        found = to_builtins(self)
        found["conditions"] = [
            {"name": c.name, "a": c.here, "b": c.expected, "agreement": c.agreement.value} for c in self.conditions
        ]
        fixed = {"schema": "alignment/v1", "exit_code": int(self.verdict.exit_code)}
        return {**fixed, "published_rule": self.published_rule, **found}


def align_curves(
    a: Curve,
    b: Curve,
    case: Case | None = None,
    *,
    from_step: int = FROM_STEP,
    to_step: int | None = None,
    within: float = WITHIN,
) -> AlignResult:
    """Hold curve A against the reference B.

    Args:
        case: the case of the records; required if a curve is that of a record.

    Raises:
        FlagbenchError: the curves are of one record or of different cases, or the bound is out of range.
    """
    if not 0 < within <= 1:
        raise FlagbenchError(f"--within {within:g} is out of range", remedy="give a fraction, such as 0.02 for 2 %")
    if a.record and b.record and (a.record.record_id == b.record.record_id or a.record.case != b.record.case):
        same = a.record.case == b.record.case
        raise FlagbenchError(
            f"A and B are one record, {a.name}" if same else f"A is of {a.record.case}, B is of {b.record.case}",
            remedy="name the records of two runs of one case; `flagbench results ls` shows them",
        )
    last = math.inf if to_step is None else to_step
    errors = _relative_errors(a, b)
    counted = {step: error for step, error in errors.items() if from_step <= step <= last}
    known = {step: error for step, error in counted.items() if error is not None}
    mean = math.fsum(known.values()) / len(known) if known and len(known) == len(counted) else None
    largest = max(known, key=lambda step: known[step]) if known else None
    end = max(b.losses)
    cut = max(0, int(min(last, end + b.cut)) - max(from_step - 1, end))
    missing = sum(from_step <= step <= last and step not in errors for step in b.losses) + cut

    problems = [f"{side}: {problem}" for side, c in (("A", a), ("B", b)) for problem in _problems(c, case)]
    conditions = _conditions(a.record, b.record, case) if a.record and b.record and case else ()
    other = [c for c in conditions if c.name not in SAME_CURVE]
    differing = [c.name for c in other if c.here != c.expected]
    shown = "" if mean is None else f"the mean relative error of {len(counted):,} steps is {percent(mean)}"
    if problems:
        verdict, reason = Alignment.INVALID, problems[0]
    elif differing:
        verdict, reason = Alignment.NOT_COMPARABLE, f"different curves, by {', '.join(differing)}"
    elif not counted:
        verdict, reason = Alignment.INCONCLUSIVE, "the curves have no common step that counts"
    elif mean is None:
        step = next(step for step, error in counted.items() if error is None)
        losses = f"the loss of A is {_text(a.losses[step])}, of B {_text(b.losses[step])}"
        verdict, reason = Alignment.INVALID, f"step {step} has no relative error: {losses}"
    elif missing:
        lacking = f"{missing:,} steps of B that count are not in both curves"
        verdict, reason = Alignment.INCONCLUSIVE, f"{shown}, but {lacking}; --to-step leaves out those at the end"
    elif mean >= within or math.isclose(mean, within, rel_tol=1e-12):
        verdict, reason = Alignment.DIVERGED, f"{shown}, not less than {percent(within)}"
    elif other:
        unknown = ", ".join(c.name for c in other)
        verdict, reason = Alignment.INCONCLUSIVE, f"{shown}, but neither record says what this was: {unknown}"
    else:
        verdict, reason = Alignment.ALIGNED, f"{shown}, less than {percent(within)}"
    return AlignResult(
        verdict=verdict,
        reason=reason,
        a=a.name,
        b=b.name,
        case=None if case is None else case.name,
        from_step=from_step,
        to_step=to_step,
        within=within,
        compared=len(counted),
        missing=missing,
        mean_error=mean,
        largest_error=None if largest is None else known[largest],
        largest_error_step=largest,
        diverges_from=_diverges_from(errors, within),
        conditions=conditions,
    )


def percent(fraction: float) -> str:
    """`1.234 %`."""
    return f"{100 * fraction:.4g} %"


def _problems(curve: Curve, case: Case | None) -> tuple[str, ...]:
    found = invalid(recompute(curve.record, case)) if curve.record and case else ()
    return tuple(each.message for each in found)


def _text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:g}"


def _relative_errors(a: Curve, b: Curve) -> dict[int, float | None]:
    """The relative error of each common step; None where a loss is not finite, or the reference is 0."""
    found: dict[int, float | None] = {}
    for step, left in a.losses.items():
        if step in b.losses:
            right = b.losses[step]
            error = abs(left - right) / abs(right) if left is not None and right else math.nan
            found[step] = error if error < LARGEST_ERROR else None
    return found


def _diverges_from(errors: Mapping[int, float | None], within: float) -> int | None:
    """The first step from which on all errors exceed the bound. A step without an error is beyond any bound."""
    first: int | None = None
    for step in sorted(errors, reverse=True):
        error = errors[step]
        if error is not None and error <= within:
            break
        first = step
    return first


# Whether two runs should have the same curve


def _conditions(a: Record, b: Record, case: Case) -> tuple[ConditionResult, ...]:
    """What the loss depends on and is not known to be equal."""
    loss = case.metric("loss")
    names = [name for name in (loss.depends_on if loss else ()) if name not in BATCH]
    left, right = _facts(a), _facts(b)
    here, there = {**known_conditions(a), **left}, {**known_conditions(b), **right}
    found = compare_conditions(dict.fromkeys((*names, *left, *right)), here, there)
    return tuple(condition for condition in found if condition.forbids)


def _facts(record: Record) -> dict[str, Scalar | None]:
    """The samples that all replicas together train on in a step, and the hash of the training set."""
    replicas = record.system.nodes * record.system.devices_per_node if record.layout is None else record.layout.dp
    batch, steps = record.conditions.get(BATCH[0]), record.conditions.get(BATCH[1], 1)
    samples = replicas * batch * steps if isinstance(batch, int) and isinstance(steps, int) else None
    quality = record.raw.get("quality")
    data = quality.get("data") if isinstance(quality, dict) else None
    found = {"train_sha256": data["train_sha256"]} if isinstance(data, dict) and "train_sha256" in data else {}
    return found if samples is None else {"samples_per_step": samples, **found}


# Curves of records and of files


class CurveError(FlagbenchError):
    """A record or a file that does not hold a usable loss curve."""

    def __init__(
        self,
        message: str,
        remedy: str = "give CSV with a header line that names the columns step and loss, or JSON lines with these "
        "fields; steps are counted from 1 and ascend",
    ) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.DATA)


def record_curve(record: Record) -> Curve:
    """The curve of a record. Raises CurveError if it does not have the losses of training steps."""
    losses = record.quality and record.quality.losses
    if not losses or not 0 < len(losses.values) <= losses.steps:
        raise CurveError(
            f"record {record.record_id} does not have the losses of its training steps",
            "name the record of a run that trained; `flagbench results ls` shows the stored ones",
        )
    numbered = dict(enumerate(losses.values, losses.first_step + 1))
    return Curve(record.record_id, numbered, losses.steps - len(numbered), record)


def read_curve(content: bytes, name: str) -> Curve:
    """The curve in the bytes of a file: a record, CSV or JSON lines; `name` is what errors call it.

    Raises:
        CurveError: a line has no step and loss, a step does not follow the one before it, or a loss is no number.
        RecordError: it is JSON, but neither such lines nor a record.
    """
    try:
        lines = content.decode("utf-8-sig").splitlines()  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        raise CurveError(f"{name} is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}") from None
    first = next(filter(str.strip, lines), "")
    is_json = first.lstrip().startswith("{")
    if is_json and not _is_point(_json_object(first)):
        return record_curve(read_record(content, name))
    losses: dict[int, float | None] = {}
    last = 0
    for number, fields in _json_lines(lines) if is_json else _csv_lines(lines, name):
        where = f"line {number} of {name}"
        if not _is_point(fields):
            raise CurveError(f"{where} does not have one step and one loss")
        step, loss = fields["step"], fields["loss"]
        text = str(step)
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) > last):
            after = f" after step {last}" if last else ""
            raise CurveError(f"{where} has step {brief(text, 40)!r}{after}")
        last = int(text)
        try:
            value = math.nan if loss is None else float(str(loss))  # null is how JSON has what is not finite
        except ValueError:
            raise CurveError(f"{where}: the loss {brief(str(loss), 40)!r} is not a number") from None
        losses[last] = value if math.isfinite(value) else None
    if not losses:
        raise CurveError(f"{name} has no losses")
    return Curve(name, losses)


def _is_point(fields: Any) -> bool:
    return isinstance(fields, dict) and {"step", "loss"} <= fields.keys() and None not in fields


def _json_object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _json_lines(lines: list[str]) -> Iterator[tuple[int, Any]]:
    return ((number, _json_object(line)) for number, line in enumerate(lines, 1) if line.strip())


def _csv_lines(lines: list[str], name: str) -> Iterator[tuple[int, Any]]:
    """The lines below the header by column; cells without a column are under None, missing ones are empty."""
    reader = csv.DictReader(lines, restval="", skipinitialspace=True, strict=True)
    try:
        reader.fieldnames = [column.strip().lower() for column in reader.fieldnames or ()]
        for fields in reader:
            yield reader.line_num, {key: cell.strip() if key else cell for key, cell in fields.items()}
    except csv.Error as error:
        raise CurveError(f"line {reader.line_num} of {name} is not valid CSV: {error}") from None
