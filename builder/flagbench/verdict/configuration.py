"""Whether a record's configuration is what its preset and its command line give.

Of the published size, `reference`, every value must be that of the case's manifest, but for those that the command
line set: a smaller model under the published name would be measured as the published one. Of the preset `tiny`, and
where a record and this flagbench differ in version, only the values that its conditions follow from and those of
`model`, `layout` and `engine` are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flagbench.manifests.settings import preset_of
from flagbench.verdict.arguments import ANSWERS
from flagbench.verdict.derivation import Unknown, count, leaves, look_up, same, schedule
from flagbench.verdict.subject import Subject, differ, text
from flagbench_core import __version__

_ADDED = frozenset(
    ("case", "division", "preset", "precision", "nodes", "gpus", "seed", "weights", "data.source", "data.default")
)
"""What resolving adds to a preset, or takes away; compared with the rest of the record."""
_WORK = ("model.", "layout.", "engine.name")


def contradictions(subject: Subject) -> Iterator[str]:
    """Every contradiction between a configuration and the preset and command line it came from, one clause each."""
    if not subject.config:
        return
    yield from _names(subject)
    yield from _command_line(subject)
    yield from _preset(subject)


def _names(subject: Subject) -> Iterator[str]:
    """No name in a configuration has a dot, which would make it the path of another value."""
    yield from (f"config has a value with the name {name!r}" for name in map(text, _dotted(subject.config)))


def _dotted(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if not name or "." in name:
            yield name
        if isinstance(value, Mapping):
            yield from _dotted(value)


def _command_line(subject: Subject) -> Iterator[str]:
    """What the command line asked for, and what the configuration has."""
    record, config, asked = subject.record, subject.config, subject.arguments
    if record.argv and asked.words != (record.case,):
        yield differ("case", record.case, "its command line says", " ".join(asked.words) or "none")
    for option in sorted(ANSWERS & set(asked.options)):
        yield f"its command line says {option}, with which nothing runs"
    for option, path in (
        ("--preset", "preset"),
        ("--division", "division"),
        ("--precision", "precision"),
        ("--run-id", None),
    ):
        value = asked.last(option)
        here = record.run_id if path is None else look_up(config, path)
        if value is not None and here != value:
            yield differ(f"config.{path}" if path else "run_id", here, f"its command line says {option}", value)
    for option, path in (("--nodes", "nodes"), ("--gpus", "gpus"), ("--seed", "seed")):
        number, here = asked.integer(option), look_up(config, path)
        if option in asked.options and (number is None or not same(here, number)):
            yield differ(f"config.{path}", here, f"its command line says {option}", asked.last(option))
    if asked.last("--data") == "synthetic" and look_up(config, "data.source") != "synthetic":
        yield differ(
            "config.data.source", look_up(config, "data.source"), "its command line says --data", "synthetic"
        )
    yield from _asked_length(subject)
    for name, value in asked.settings.items():
        spec = subject.case.settable.get(name)
        if spec is None:
            continue
        expected, here = typed(value, spec["type"]), look_up(config, spec["path"])
        # 0: as many as there are devices, resolved to a number.
        if not same(here, expected) and not (spec["path"] == "layout.tp" and expected == 0):
            yield differ(f"config.{spec['path']}", here, f"its command line says --set {name}", value)


def _asked_length(subject: Subject) -> Iterator[str]:
    """The steps of the window: as asked for, else those of the preset on synthetic data, else none."""
    asked, here = subject.arguments, schedule(subject.config).get("window_steps")
    options: dict[str, int | None] = {}
    if (steps := asked.integer("--steps")) is not None:
        options["--steps"] = steps
    batch, samples = count(schedule(subject.config), "batch_size"), asked.integer("--max-samples")
    if samples is not None and batch and subject.replicas:
        options["--max-samples"] = max(1, -(-samples // (batch * subject.replicas)))
    if "--full" in asked.options:
        options["--full"] = None
    for option, expected in options.items():
        if not same(here, expected):
            yield differ("config's window_steps", here, f"its command line says {option}:", expected)


def _preset(subject: Subject) -> Iterator[str]:
    """The preset, value for value."""
    record, case, config = subject.record, subject.case, subject.config
    here, there = dict(leaves(config)), dict(leaves(preset_of(case, record.preset, record.division)))
    # Without a command line, any hyper-parameter may have been set.
    allowed = set(subject.arguments.settings) if record.argv else set(case.settable)
    free = _ADDED | {case.settable[name]["path"] for name in allowed if name in case.settable}
    free |= {path for path in there if path.endswith(".window_steps")}
    other = record.flagbench.version != __version__
    note = f" of flagbench {__version__}; the record was made by {record.flagbench.version}" if other else ""
    loose, derived = other or record.preset != "reference", set(_paths(case.conditions))
    for path in dict.fromkeys((*there, *here)):
        if path in free or (path == "layout.tp" and there.get(path) == 0):
            continue
        if loose and not (path in here and path in there and (path.startswith(_WORK) or path in derived)):
            continue
        ours, theirs = here.get(path, Unknown()), there.get(path, Unknown())
        if isinstance(ours, Unknown) or isinstance(theirs, Unknown):
            lacks = "its configuration" if isinstance(ours, Unknown) else f"the preset {record.preset}"
            yield f"config.{path} is not in {lacks}"
        elif not same(ours, theirs):
            yield differ(f"config.{path}", ours, f"the preset {record.preset} has", theirs) + note


def _paths(value: Any) -> Iterator[str]:
    """Every path in the derivations of conditions."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("value", "one_of", "text"):
                yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)


def typed(text: str, kind: str) -> Any:
    """The value of `--set NAME=TEXT` by the type of a hyper-parameter; the text itself if it is not of that type."""
    try:
        if kind == "boolean":
            return {"true": True, "false": False}.get(text.lower(), text)
        return {"integer": int, "number": float, "string": str}[kind](text)
    except ValueError:
        return text
