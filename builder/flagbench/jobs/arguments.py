"""What a job's containers are told: the subset of an image's options that makes sense in a pod."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flagbench.catalog.options import option_words
from flagbench.catalog.settings import setting_fault
from flagbench.errors import FlagbenchError
from flagbench.jobs.syntax import text_fault
from flagbench.schema import nearest

if TYPE_CHECKING:
    from flagbench.catalog.model import Case, Scalar, Stack

_MOST = 10**12
_SEEDS = 2**31
YEAR = 365 * 24 * 3600
"""Seconds: the longest that anything may be given."""


@dataclass(frozen=True)
class ImageArguments:
    """Options of the image; None leaves a choice to it. Fields have the options' names."""

    preset: str | None = None
    division: str | None = None
    precision: str | None = None
    data: str | None = None
    """`synthetic`, or None: what is at /data, where anything is."""
    steps: int | None = None
    max_samples: int | None = None
    full: bool = False
    seed: int | None = None
    set_: tuple[str, ...] = ()
    """`NAME=VALUE` each."""
    max_minutes: float | None = None
    timeout: float | None = None
    """Seconds without progress that count as a hang."""

    def words(self) -> list[str]:
        """The arguments as the image takes them, one word each."""
        options = {
            "--preset": self.preset,
            "--division": self.division,
            "--precision": self.precision,
            "--data": self.data,
            "--steps": self.steps,
            "--max-samples": self.max_samples,
            "--seed": self.seed,
            "--max-minutes": self.max_minutes,
            "--timeout": self.timeout,
        }
        return option_words(options, self.set_, full=self.full)


def check_arguments(arguments: ImageArguments, case: Case, stack: Stack) -> None:
    """Refuse here what the image would refuse once it has a node.

    Raises:
        FlagbenchError: (usage) a choice that the case does not have, a number out of range, two lengths at once.
    """
    _check_choices(arguments, case, stack)
    _check_numbers(arguments)
    lengths = [name for name in ("steps", "max_samples", "full") if getattr(arguments, name)]
    if len(lengths) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in lengths)
        raise FlagbenchError(f"{names} contradict each other", remedy="give one of them")
    for setting in arguments.set_:
        _check_setting(setting, case)


def _check_choices(arguments: ImageArguments, case: Case, stack: Stack) -> None:
    allowed = {
        "--preset": (arguments.preset, tuple(case.presets)),
        "--division": (arguments.division, case.divisions),
        "--precision": (arguments.precision, case.precisions),
        "--data": (arguments.data, ("synthetic",)),
    }
    for option, (value, choices) in allowed.items():
        if value is not None and value not in choices:
            raise FlagbenchError(
                f"{option} {value!r} is not a choice of {case.name} in a job",
                remedy=f"choose one of: {', '.join(choices)}",
            )
    if arguments.precision == "tf32" and stack.device_kind == "cpu":
        raise FlagbenchError("a processor has no TF32", remedy=f"use fp32 or bf16 on the {stack.name} stack")


def _check_numbers(arguments: ImageArguments) -> None:
    ranges = {
        "--steps": (arguments.steps, 1, _MOST),
        "--max-samples": (arguments.max_samples, 1, _MOST),
        "--seed": (arguments.seed, 0, _SEEDS),
    }
    for option, (count, least, limit) in ranges.items():
        if count is not None and not least <= count < limit:
            raise FlagbenchError(
                f"{option} {count} is out of range", remedy=f"give a number from {least} to {limit - 1}"
            )
    spans = {
        "--max-minutes": (arguments.max_minutes, YEAR // 60),
        "--timeout": (arguments.timeout, YEAR),
    }
    for option, (span, most) in spans.items():
        if span is not None and not 0 < span <= most:
            raise FlagbenchError(
                f"{option} {span} is not a span of time", remedy=f"give a number above 0, up to {most} (a year)"
            )


def _check_setting(setting: str, case: Case) -> None:
    name, equals, raw = setting.partition("=")
    if not equals:
        raise FlagbenchError(f"--set {setting!r} has no value", remedy="write --set NAME=VALUE")
    if name not in case.settable:
        close = nearest(name, case.settable)
        hint = f"did you mean {close}? " if close else ""
        raise FlagbenchError(
            f"--set: {name!r} is not a hyper-parameter of {case.name} that may be set",
            remedy=f"{hint}settable are: {', '.join(sorted(case.settable))}",
        )
    spec = case.settable[name]
    value = _typed(raw, spec["type"])
    fault = text_fault(raw) or (setting_fault(spec, value) if value is not None else f"{raw!r} is no {spec['type']}")
    if fault:
        raise FlagbenchError(f"--set {name}: {fault}", remedy="give a value that the case allows")


def _typed(raw: str, kind: str) -> Scalar | None:
    """The value as the image will read it; None where it is not of that type, or no finite number."""
    if kind == "boolean":
        return {"true": True, "false": False}.get(raw.lower())
    if kind == "string":
        return raw
    try:
        value: int | float = int(raw) if kind == "integer" else float(raw)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
