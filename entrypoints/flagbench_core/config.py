"""The configuration of a run: what follows from a case's manifest, a stack's manifest and the options of the run.

The host resolves it before anything starts, the image when it starts, and both refuse the same options. `case` and
`stack` are manifests as an image reads them: case.json and stacks/NAME.json.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from flagbench_core import DIVISION
from flagbench_core.evidence.section import INFER, MEASURE, kind_of

TYPES: Mapping[str, tuple[Any, str]] = {
    "integer": (int, "an integer"),
    "number": ((int, float), "a finite number"),
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "shape": (list, "the rows, columns and inner size of a product, as in 2048x2048x13312"),
}
"""The types that a setting can have: in Python, and in words."""
_SHAPE = re.compile("[1-9][0-9]{0,6}x[1-9][0-9]{0,6}x[1-9][0-9]{0,6}")
BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", operator.ge, "at least"),
    ("exclusive_minimum", operator.gt, "more than"),
    ("maximum", operator.le, "at most"),
    ("exclusive_maximum", operator.lt, "less than"),
)
NOT_ON_CPU = {
    "tf32": "a CPU has no TF32",
    "fp16": "FP16 training does not run on a CPU",
    "fp8": "FP8 training does not run on a CPU",
}
WHOLE = {INFER: "the whole set once", MEASURE: "the publisher's iterations"}
"""The stop rules of full runs that do not train."""


class ConfigError(ValueError):
    """A configuration that cannot be resolved: what is wrong, and how to fix it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Options:
    """The options of a run that decide its configuration, or whether the case supports it."""

    nodes: int = 1
    gpus: int = 1
    """Processes per node."""
    preset: str = "reference"
    precision: str | None = None
    """None: the case's own."""
    seed: int | None = None
    """None: the case's own."""
    source: str | None = None
    """Where the data are from, `files` or `synthetic`; None: the preset's own."""
    weights: bool = False
    """Whether there is a folder of weights; without one they are random."""
    steps: int | None = None
    max_samples: int | None = None
    full: bool = False
    settings: tuple[str, ...] = ()
    """Hyper-parameters as NAME=VALUE."""
    roofs: bool = False
    """Whether roofs are measured before the steps."""
    resume: bool = False
    out: bool = False
    """Whether there is a folder for the record and for checkpoints."""


def resolve(case: Mapping[str, Any], stack: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Everything that determines what is executed, as plain data, without paths and addresses.

    `train.window_steps` of the result is the number of measured steps, or null for the published run to convergence.
    Raises ConfigError for what the case, its engine or the stack does not support.
    """
    config = choose(case, stack, options)
    _choose_layout(config)
    check_layout(case, config)
    _check_checkpoints(case, config, options)
    _choose_length(config, options)
    return config


def choose(case: Mapping[str, Any], stack: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The configuration but for its layout and its length, which depend on the ranks. Raises ConfigError."""
    if options.preset not in case["presets"]:
        raise ConfigError(
            f"{case['name']} has no {options.preset} preset",
            f"choose one of: {', '.join(sorted(case['presets']))}",
        )
    why = stack["does_not_run"].get(case["name"]) or case["does_not_run"].get(stack["name"])
    if why:
        raise ConfigError(
            f"{case['name']} does not run on the stack {stack['name']}: {why}",
            "choose another stack; `flagbench list stacks` shows them",
        )
    settings = dict(read_setting(case, text) for text in options.settings)
    config = with_settings(case, options.preset, settings)
    _check_micro_batches(schedule(config))
    preset_source = config["data"].pop("default", None)
    config["data"]["source"] = options.source or preset_source
    seed = options.seed
    if seed is None:
        seed = case.get("default_seed", 0)
    config.update(
        case=case["name"],
        division=DIVISION,
        preset=options.preset,
        precision=choose_precision(case, stack, options.precision),
        nodes=options.nodes,
        gpus=options.gpus,
        seed=seed,
        weights="pretrained" if options.weights else "random",
    )
    _check_engine(case, stack, config)
    if options.roofs and kind_of(config) == MEASURE:
        raise ConfigError(f"--roofs: {case['name']} has no steps of a model", "omit --roofs")
    return config


# Presets and settings


def preset_of(presets: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """A preset of a case's `presets`: `reference`, overlaid with what it changes."""
    if name == "reference":
        return copy.deepcopy(dict(presets["reference"]))
    return merge(presets["reference"], presets[name])


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `base` with the keys of `override` replaced, recursively."""
    merged = copy.deepcopy(dict(base))
    for key, replacement in override.items():
        if isinstance(replacement, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], replacement)
        else:
            merged[key] = copy.deepcopy(replacement)
    return merged


def with_settings(case: Mapping[str, Any], preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A preset with the values of `settings`, which are by the names in the case's `settable`.

    A value that is the setting's `default` is left out, so that it changes no digest.
    """
    config = preset_of(case["presets"], preset)
    for name, value in settings.items():
        rule = case["settable"][name]
        if "default" in rule and value == rule["default"]:
            continue
        *path, key = rule["path"].split(".")
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[key] = value
    return config


def read_setting(case: Mapping[str, Any], text: str) -> tuple[str, Any]:
    """The name and the typed value of `--set NAME=VALUE`. Raises ConfigError if the case does not allow it."""
    name, equals, raw = text.partition("=")
    settable = case["settable"]
    if not equals:
        raise ConfigError(f"--set {text} has no value", "write --set NAME=VALUE")
    if name not in settable:
        raise ConfigError(
            f"--set {name}: not a settable hyper-parameter of {case['name']}",
            f"choose one of: {', '.join(sorted(settable))}",
        )
    typed = _typed(raw, settable[name]["type"])
    fault = setting_fault(settable[name], typed)
    if fault is not None:
        raise ConfigError(f"--set {name}: {raw!r} is not valid", f"it {fault}")
    return name, typed


def _typed(raw: str, kind: str) -> Any:
    """A text converted to a type; the text itself if it cannot be converted."""
    if kind == "boolean":
        return {"true": True, "false": False}.get(raw.lower(), raw)
    try:
        if kind == "integer":
            return int(raw)
        if kind == "number":
            return float(raw)
    except ValueError:
        pass
    if kind == "shape" and _SHAPE.fullmatch(raw):
        return [int(size) for size in raw.split("x")]
    return raw


def setting_fault(rule: Mapping[str, Any], value: Any) -> str | None:
    """What a value must be and is not, as in `must be at least 1`; None if `rule`, an entry of `settable`, allows it.

    Numbers are finite: another would pass a one-sided range, and canonical JSON cannot represent it.
    """
    if "default" in rule and value == rule["default"]:
        return None
    kind, expected = TYPES[rule["type"]]
    typed = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not typed or (isinstance(value, float) and not math.isfinite(value)):
        return f"must be {expected}"
    for name, holds, words in BOUNDS:
        if name in rule and not holds(value, rule[name]):
            return f"must be {words} {rule[name]}"
    if "choices" in rule and value not in rule["choices"]:
        return f"must be one of: {', '.join(map(str, rule['choices']))}"
    return None


def _check_micro_batches(section: Mapping[str, Any]) -> None:
    micro = section.get("micro_batch_size")
    if micro is not None and section["batch_size"] % micro:
        raise ConfigError(
            f"batch_size {section['batch_size']} is not a multiple of micro_batch_size {micro}",
            "make batch_size a multiple of micro_batch_size; both may be set",
        )


def choose_precision(case: Mapping[str, Any], stack: Mapping[str, Any], requested: str | None) -> str:
    """The precision to execute: the requested one, else the case's default; on a CPU that lacks the default, fp32.

    Raises ConfigError for a precision that the case or a CPU does not have.
    """
    processor = stack["device"]["kind"] == "cpu"
    if requested is None:
        default: str = case["default_precision"]
        if processor and default in NOT_ON_CPU:
            return "fp32"
        return default
    if requested not in case["precisions"]:
        raise ConfigError(
            f"--precision {requested}: {case['name']} does not run in it",
            f"choose one of: {', '.join(case['precisions'])}",
        )
    if processor and requested in NOT_ON_CPU:
        others = [name for name in case["precisions"] if name not in NOT_ON_CPU]
        raise ConfigError(
            f"--precision {requested}: {NOT_ON_CPU[requested]}",
            f"use --precision {' or '.join(others)} on the {stack['name']} stack",
        )
    return requested


# Engines and layouts


def engine_of(case: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The engine of a configuration: `engine.name`, else the case's only engine."""
    if "engine" in config:
        return str(config["engine"]["name"])
    return str(next(iter(case["engines"])))


def _check_engine(case: Mapping[str, Any], stack: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the engine does not support the stack or the number of nodes."""
    name = engine_of(case, config)
    engine, nodes = case["engines"][name], config["nodes"]
    why = engine.get("does_not_run", {}).get(stack["name"])
    if why:
        raise ConfigError(
            f"the {name} engine does not run on the stack {stack['name']}: {why}",
            _instead(case, name, "choose another stack"),
        )
    if nodes > engine.get("max_nodes", nodes):
        most = f"at most {engine['max_nodes']} nodes"
        if engine["max_nodes"] == 1:
            most = "one node"
        raise ConfigError(
            f"--nodes {nodes}: the {name} engine supports {most}",
            _instead(case, name, "use fewer nodes"),
        )


def _choose_layout(config: dict[str, Any]) -> None:
    """`layout.tp` 0: all ranks of a node share every layer, divided by the stages if there are too few ranks."""
    section = config.get("layout", {})
    if section.get("tp") == 0:
        ranks = config["nodes"] * config["gpus"]
        section["tp"] = max(1, min(config["gpus"], ranks // section.get("pp", 1)))


def check_layout(case: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the engine does not support the layout, or the layout does not divide ranks and model."""
    name = engine_of(case, config)
    engine = case["engines"][name]
    section = config.get("layout", {})
    tp, pp = section.get("tp", 1), section.get("pp", 1)
    ranks = config["nodes"] * config["gpus"]
    if ranks % (tp * pp):
        options = " and ".join(f"--set {axis}" for axis in ("tp", "pp") if axis in case["settable"])
        raise ConfigError(
            f"{ranks} rank(s) cannot be divided into replicas of {tp * pp} ranks (tp {tp} x pp {pp})",
            f"choose --nodes and --gpus so that their product is a multiple of {tp * pp}, "
            f"or another layout by {options}",
        )
    for axis, size in (("dp", ranks // (tp * pp)), ("tp", tp), ("pp", pp)):
        if size > 1 and axis not in engine["layout"]:
            supported = ", ".join(engine["layout"]) or "one rank"
            raise ConfigError(
                f"the {name} engine does not support a layout with {axis} {size}",
                _instead(case, name, f"it supports only {supported}"),
            )
        for path in engine.get("divides", {}).get(axis, ()):
            _check_divides(config, path, axis, size)


def _check_divides(config: Mapping[str, Any], path: str, axis: str, size: int) -> None:
    """Raise ConfigError if the size of an axis does not divide the number at a path of the configuration."""
    divided: Any = config
    for key in path.split("."):
        divided = divided[key]
    if divided % size:
        raise ConfigError(
            f"a layout with {axis} {size} does not divide {path}, which is {divided}",
            f"change --gpus, or the layout, so that {axis} is a divisor of {divided}",
        )


def replicas(config: Mapping[str, Any]) -> int:
    """The data-parallel replicas of a resolved configuration: as many as there are ranks for."""
    section = config.get("layout", {})
    ranks: int = config["nodes"] * config["gpus"]
    return ranks // int(section.get("tp", 1) * section.get("pp", 1))


def _check_checkpoints(case: Mapping[str, Any], config: Mapping[str, Any], options: Options) -> None:
    """Raise ConfigError if the run should write checkpoints or resume, and its case or engine does not support it."""
    writes = schedule(config).get("checkpoint_every_steps")
    if options.resume and not case["resume"]:
        raise ConfigError(f"--resume: {case['name']} does not support it", "omit --resume")
    name = engine_of(case, config)
    if not case["engines"][name].get("resume", case["resume"]):
        if options.resume:
            raise _no_checkpoints(case, name, "--resume")
        if writes:
            raise _no_checkpoints(case, name, "--set checkpoint_every_steps")
    if writes and not options.out:
        raise ConfigError(
            "checkpoints are written to --out, and it is not set", "set --out DIR; for a job, --out-pvc CLAIM"
        )


def _no_checkpoints(case: Mapping[str, Any], engine: str, option: str) -> ConfigError:
    remedy = _instead(case, engine, f"omit {option}", or_else=True)
    return ConfigError(f"{option}: the {engine} engine has no checkpoints", remedy)


def _instead(case: Mapping[str, Any], engine: str, remedy: str, or_else: bool = False) -> str:
    """The remedy; if --set can choose another engine, that instead of `remedy`, or both with `or_else`."""
    settings = [name for name, rule in case["settable"].items() if rule["path"] == "engine.name"]
    others = [name for name in case["engines"] if name != engine]
    if not settings or not others:
        return remedy
    set_engine = f"use --set {settings[0]}={others[0]}"
    if or_else:
        return f"{set_engine}, or {remedy}"
    return set_engine


# Length


def schedule(config: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the length of the run, named as the kind of case: `train`, `infer` or `measure`."""
    section: dict[str, Any] = config[kind_of(config)]
    return section


def _choose_length(config: dict[str, Any], options: Options) -> None:
    """Set `window_steps`: as requested, else None unless the data are synthetic, which keep the preset's window."""
    section = schedule(config)
    if options.full and section.get("laps"):
        raise ConfigError("--full: laps do not make the publisher's iterations", "omit --full, or --set laps")
    if options.steps is not None:
        section["window_steps"] = options.steps
    elif options.max_samples is not None:
        if kind_of(config) == MEASURE:
            raise ConfigError(f"--max-samples: {config['case']} has no samples", "use --steps")
        batch = section["batch_size"] * replicas(config)
        section["window_steps"] = max(1, -(-options.max_samples // batch))
    elif options.full or config["data"]["source"] != "synthetic":
        section["window_steps"] = None


def measuring_seconds(section: Mapping[str, Any]) -> float:
    """Seconds that a run measures at most, by its `measure` section: its laps, or all measurements once, and the
    products that heat the device before."""
    seconds: float = section["seconds"] * section.get("laps", 1) + section.get("heat_seconds", 0)
    return seconds


def stop_rule(config: Mapping[str, Any]) -> str:
    """When a run ends, in the wording of a claim.

    Raises KeyError or TypeError for a configuration without it: that of a record may have any form.
    """
    length = schedule(config)
    if length["window_steps"] is not None:
        return f"window of {_integer(length['window_steps'])} steps"
    if kind_of(config) in WHOLE:
        return WHOLE[kind_of(config)]
    limit = f"{_integer(length['max_epochs'])} epochs"
    if length.get("max_samples") is not None:
        limit = f"{_integer(length['max_samples'])} samples"
    if length["target_acc"] is None:
        return limit
    return f"acc >= {_number(length['target_acc']):g} or {limit}"


def _integer(count: Any) -> int:
    """An integer as it is. Raises TypeError for anything else."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{count!r} is not an integer")
    return count


def _number(amount: Any) -> float:
    """A number as it is. Raises TypeError for anything else."""
    if not isinstance(amount, (int, float)):
        raise TypeError(f"{amount!r} is not a number")
    return amount


# Digest


def canonical(config: Mapping[str, Any]) -> str:
    """The canonical JSON text whose digest is computed: sorted keys, no spaces, no NaN."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(config: Mapping[str, Any]) -> str:
    """`sha256:` and the hash of the canonical text."""
    return "sha256:" + hashlib.sha256(canonical(config).encode("utf-8")).hexdigest()
