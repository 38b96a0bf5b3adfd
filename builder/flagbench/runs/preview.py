"""Prints what `flagbench run` would run, before anything starts: `--dry-run`, warnings, and a question.

`flagbench reproduce` uses parts of it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

import typer

from flagbench.console.output import echo_json, print_note
from flagbench.console.page import wrap_text
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.describe import Described
from flagbench.runs.launchers.estimate import DurationEstimate
from flagbench.runs.memory import MemoryComparison
from flagbench.runs.request import RunRequest
from flagbench.runs.target import Target
from flagbench_core.case_kinds import INFER, MEASURE, kind_of
from flagbench_core.config import measuring_seconds, schedule

_GAP = "  "
"""The space between a name and its value."""
_LEAST_WIDTH = 20
"""Columns for values on a terminal that is narrower than that."""


def announce(target: Target) -> None:
    """Print a line on stderr at once: the run itself prints its first line only after a second."""
    print_note(f"flagbench: {target.request.name}, {_shape(target.request)}, {target.via}")


def warn_of_memory(memory: MemoryComparison | None) -> None:
    """Warn on stderr if the devices have less memory than the run was measured to use. It is started anyway."""
    if memory is not None and memory.shortage is not None:
        print_note(f"warning: {memory.shortage}")


def show(
    target: Target,
    described: Described,
    expected: DurationEstimate | None,
    memory: MemoryComparison | None,
    *,
    command: str,
    series: Mapping[str, Any] | None = None,
    as_json: bool,
) -> None:
    """Print what would run, as a table or as JSON.

    Args:
        target: the first run.
        described: its resolved configuration.
        expected: its expected duration; None: not known.
        memory: its measured memory; None: not known.
        command: the shell command that does the same.
        series: the options of the series of which it is the first run; None: it is a single run.
        as_json: whether to print JSON.
    """
    facts = _run_facts(target, described, expected, memory, command)
    if series is not None:
        facts["series"] = dict(series)
    if as_json:
        echo_json(facts)
        return
    config = described.config
    request = target.request
    rows = {
        "runs": f"{request.name}, {_shape(request)}",
        "image": target.image or f"none: in this Python, {sys.executable}",
        "command": command,
        "configuration": described.digest,
    }
    if request.case.kind != MEASURE:
        rows["precision"] = config["precision"]
        rows["data"] = _with_folder(facts["data"])
        rows["weights"] = _with_folder(facts["weights"])
    rows["length"] = _length_text(config)
    rows["takes"] = time_of_run(expected)
    if memory is not None:
        rows["memory"] = _memory_text(memory)
    if facts["problem"] is not None:
        rows["problem"] = facts["problem"]
    if series is not None:
        rows["series"] = ", ".join(f"{name} {value}" for name, value in series.items() if value is not None)
    print_rows(rows)


def _run_facts(
    target: Target,
    described: Described,
    expected: DurationEstimate | None,
    memory: MemoryComparison | None,
    command: str,
) -> dict[str, Any]:
    """A description of the run, as `--dry-run --json` prints it."""
    config = described.config
    options = target.request.options
    expected_seconds = expected_basis = memory_facts = None
    if expected is not None:
        expected_seconds = expected.seconds
        expected_basis = expected.basis
    if memory is not None:
        memory_facts = _memory_facts(memory)
    return {
        "via": target.via,
        "image": target.image,
        "command": command,
        "config": dict(config),
        "config_digest": described.digest,
        "devices": {
            "nodes": options.nodes,
            "per_node": options.gpus,
            "kind": target.request.stack.device_kind,
        },
        "data": {"source": config["data"]["source"], "folder": options.data},
        "weights": {"source": config["weights"], "folder": options.weights},
        "expected_seconds": expected_seconds,
        "expected_basis": expected_basis,
        "memory": memory_facts,
        "problem": problem_of(target),
    }


def _memory_facts(memory: MemoryComparison) -> dict[str, Any]:
    """The measured memory for JSON, GiB."""
    measured = memory.measured
    return {
        "measured_gib": measured.gib,
        "on": measured.device,
        "source": measured.source,
        "device_gib": memory.device_gib,
    }


def _memory_text(memory: MemoryComparison) -> str:
    """The measured memory, the device it was measured on, and the memory of a device of this machine."""
    measured = memory.measured
    text = f"{measured.gib:g} GiB of each device, measured on {measured.device} ({measured.source})"
    if memory.device_gib is None:
        return text
    return f"{text}; a device here has {memory.device_gib:.4g}"


def problem_of(target: Target) -> str | None:
    """The reason why a run could not start, such as a missing image, and what to do; None if it could start."""
    try:
        target.launcher.check(target.request)
    except FlagbenchError as error:
        if error.remedy is None:
            return error.message
        return f"{error.message}; {error.remedy}"
    return None


def print_rows(rows: Mapping[str, str]) -> None:
    """Print a name and its value on each line. On a terminal, long values wrap in their own column."""
    widest = max(len(name) for name in rows)
    width = None
    if sys.stdout.isatty():
        space_left = shutil.get_terminal_size().columns - widest - len(_GAP)
        width = max(_LEAST_WIDTH, space_left)
    for name, value in rows.items():
        label = name
        for line in wrap_text(visible(value), width):
            print(f"{label:<{widest}}{_GAP}{line}")
            label = ""


def time_of_run(expected: DurationEstimate | None) -> str:
    """A phrase that says how long a run takes, or that this is unknown."""
    if expected is None:
        return "unknown: no stored run and no published row of this configuration says it"
    return expected.text


def needs_confirmation(request: RunRequest, *, yes: bool) -> bool:
    """Whether the user must confirm a run: the published size on a processor may take days. `yes`: --yes is given.

    Raises FlagbenchError (USAGE) if the user must confirm, but stdin or stderr is not a terminal.
    """
    may_take_days = request.stack.device_kind == "cpu" and request.options.preset == "reference"
    if yes or not may_take_days:
        return False
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise FlagbenchError(
            "the reference preset is the published size, made for accelerators, and this would run it on a processor",
            remedy="add --yes to run it anyway, or use --preset tiny, which takes seconds",
        )
    return True


def confirm(expected: DurationEstimate | None) -> None:
    """Ask whether to run the published size on a processor. Raises typer.Abort unless the answer is yes."""
    # All on stderr: stdout is for the record.
    typer.echo(
        "The reference preset is the published size, made for accelerators; --preset tiny takes seconds.\n"
        f"Time on this processor: {time_of_run(expected)}.\n"
        "Run it? [y/N] ",
        nl=False,
        err=True,
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _shape(request: RunRequest) -> str:
    """`reference preset, 1 node x 8 devices`."""
    unit = "rank" if request.stack.device_kind == "cpu" else "device"
    nodes = _count_text(request.options.nodes, "node")
    return f"{request.options.preset} preset, {nodes} x {_count_text(request.options.gpus, unit)}"


def _count_text(number: int, noun: str) -> str:
    """`1 node` or `2 nodes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def _with_folder(origin: Mapping[str, Any]) -> str:
    """The `source` of the data or weights, and their `folder` if there is one and the source does not name it."""
    source, folder = origin["source"], origin["folder"]
    if not folder or folder == source:
        return str(source)
    return f"{source}, {folder}"


def _length_text(config: Mapping[str, Any]) -> str:
    """Say how long a run is, from its resolved configuration.

    The length is in the section of its kind, {"warmup_steps", "window_steps", ...}. `window_steps` is the number of
    steps to measure; None: the run ends where the published one did.
    """
    section = schedule(config)
    kind = kind_of(config)
    if kind == MEASURE:
        return _length_of_measurements(section)
    if section["window_steps"] is not None:
        return f"{section['window_steps']} steps after {section['warmup_steps']} of warm-up"
    if kind == INFER:
        return "the whole set once"
    return _length_of_training(section)


def _length_of_measurements(section: Mapping[str, Any]) -> str:
    """Say how long a run without a model is. `section`: {"window_steps", "seconds"}, in a soak also "laps"."""
    if section["window_steps"] is None:
        return "the publisher's iterations"
    if "laps" in section:
        return f"{section['laps']} laps of {section['seconds']} s"
    return f"at most {measuring_seconds(section)} s"


def _length_of_training(section: Mapping[str, Any]) -> str:
    """Say how long a full training is.

    Args:
        section: {"max_epochs"}, and if the case has them {"max_samples", "target_acc"}, each of which may be None.
    """
    length = f"at most {section['max_epochs']} epochs"
    if section.get("max_samples") is not None:
        length = f"at most {section['max_samples']} samples"
    if section.get("target_acc") is None:
        return length
    return f"until acc >= {section['target_acc']:g}, {length}"
