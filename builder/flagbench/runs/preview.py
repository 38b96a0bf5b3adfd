"""Output of `flagbench run` before anything starts: what would run, how long it takes, and a question."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

import typer

from flagbench.console.output import echo_json, print_note
from flagbench.console.page import wrapped
from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.describe import Described
from flagbench.runs.launchers.estimate import DurationEstimate
from flagbench.runs.memory import MemoryHere
from flagbench.runs.request import RunRequest
from flagbench.runs.target import Target
from flagbench_core.config import measuring_seconds, schedule
from flagbench_core.evidence.section import MEASURE


def announce(target: Target) -> None:
    """Print a line on stderr at once: the run itself prints its first line only after a second."""
    print_note(f"flagbench: {target.request.name}, {_shape(target.request)}, {target.via}")


def warn_of_memory(memory: MemoryHere | None) -> None:
    """Warn on stderr that the devices have less memory than the run was measured to use. It is started anyway."""
    if memory is not None and memory.shortage is not None:
        print_note(f"warning: {memory.shortage}")


def show(
    target: Target,
    described: Described,
    expected: DurationEstimate | None,
    memory: MemoryHere | None,
    *,
    command: str,
    series: Mapping[str, Any] | None = None,
    as_json: bool,
) -> None:
    """Print what would run. `series`: the facts of the series of which it is the first run."""
    config = described.config
    request, image = target.request, target.image
    options = request.options
    facts: dict[str, Any] = {
        "via": target.via,
        "image": image,
        "command": command,
        "config": dict(config),
        "config_digest": described.digest,
        "devices": {"nodes": options.nodes, "per_node": options.gpus, "kind": request.stack.device_kind},
        "data": {"source": config["data"]["source"], "folder": options.data},
        "weights": {"source": config["weights"], "folder": options.weights},
        "expected_seconds": None if expected is None else expected.seconds,
        "expected_basis": None if expected is None else expected.basis,
        "memory": None if memory is None else _memory_facts(memory),
        "problem": problem_of(target),
    }
    if series is not None:
        facts["series"] = dict(series)
    if as_json:
        echo_json(facts)
        return
    rows = {
        "runs": f"{request.name}, {_shape(request)}",
        "image": image or f"none: in this Python, {sys.executable}",
        "command": command,
        "configuration": described.digest,
    }
    if request.case.kind != MEASURE:
        rows["precision"] = config["precision"]
        rows["data"] = _with_folder(facts["data"])
        rows["weights"] = _with_folder(facts["weights"])
    rows["length"] = _length(schedule(config))
    rows["takes"] = time_of_run(expected)
    if memory is not None:
        rows["memory"] = _memory_text(memory)
    if facts["problem"] is not None:
        rows["problem"] = facts["problem"]
    if series is not None:
        rows["series"] = ", ".join(f"{name} {value}" for name, value in series.items() if value is not None)
    print_rows(rows)


def _memory_facts(memory: MemoryHere) -> dict[str, Any]:
    measured = memory.measured
    return {
        "measured_gib": measured.gib,
        "on": measured.device,
        "source": measured.source,
        "device_gib": memory.gib,
    }


def _memory_text(memory: MemoryHere) -> str:
    measured = memory.measured
    text = f"{measured.gib:g} GiB of each device, measured on {measured.device} ({measured.source})"
    if memory.gib is None:
        return text
    return f"{text}; a device here has {memory.gib:.4g}"


def problem_of(target: Target) -> str | None:
    """Why a run could not start, such as a missing image, and what to do; None if it could."""
    try:
        target.launcher.check(target.request)
    except FlagbenchError as error:
        if error.remedy is None:
            return error.message
        return f"{error.message}; {error.remedy}"
    return None


def print_rows(rows: Mapping[str, str]) -> None:
    """Print a name and its value on each line. On a terminal, long values wrap beside their names."""
    widest = max(map(len, rows))
    width = None
    if sys.stdout.isatty():
        width = max(20, shutil.get_terminal_size().columns - widest - 2)
    for name, value in rows.items():
        label = name
        for line in wrapped(visible(value), width):
            print(f"{label:<{widest}}  {line}")
            label = ""


def time_of_run(expected: DurationEstimate | None) -> str:
    """How long a run takes, where that is known."""
    if expected is None:
        return "unknown: no stored run and no published row of this configuration says it"
    return expected.text


def asks(request: RunRequest, *, yes: bool) -> bool:
    """Whether a run must be confirmed first: the published size on a processor may take days.

    Raises FlagbenchError (usage) if it must and stdin or stderr is not a terminal.
    """
    if yes or request.stack.device_kind != "cpu" or request.options.preset != "reference":
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
    nodes = _count(request.options.nodes, "node")
    return f"{request.options.preset} preset, {nodes} x {_count(request.options.gpus, unit)}"


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def _with_folder(part: Mapping[str, Any]) -> str:
    """The source of the data or weights, and their folder where the source does not name it."""
    source, folder = part["source"], part["folder"]
    if not folder or folder == source:
        return str(source)
    return f"{source}, {folder}"


def _length(train: Mapping[str, Any]) -> str:
    if "seconds" in train:
        if train["window_steps"] is None:
            return "the publisher's iterations"
        if "laps" in train:
            return f"{train['laps']} laps of {train['seconds']} s"
        return f"at most {measuring_seconds(train)} s"
    if train["window_steps"] is not None:
        return f"{train['window_steps']} steps after {train['warmup_steps']} of warm-up"
    if "max_epochs" not in train:
        return "the whole set once"
    length = f"at most {train['max_epochs']} epochs"
    if train.get("max_samples") is not None:
        length = f"at most {train['max_samples']} samples"
    if train.get("target_acc") is None:
        return length
    return f"until acc >= {train['target_acc']:g}, {length}"
