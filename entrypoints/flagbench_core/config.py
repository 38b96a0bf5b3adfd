"""Resolves the configuration of a run from a case's manifest, a stack's manifest and the options of the run.

A case is a workload, such as a model with its data set; a stack is a vendor's software for a family of devices. The
host resolves the configuration before it starts anything, the image when it starts, so both refuse the same options.
`case` and `stack` are manifests as an image reads them, case.json and stacks/NAME.json; their fields are documented
in flagbench.manifests. `config` is the result of `resolve`: its sections, such as `train`, `data` and `layout`, are
those of the case's preset.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping, NamedTuple

from flagbench_core import DIVISION
from flagbench_core.case_kinds import INFER, MEASURE, kind_of


class SettingType(NamedTuple):
    """A type that a setting can have."""

    python_type: Any
    """The Python type or types of its values, as for `isinstance`."""
    description: str
    """How a message describes such a value."""


class Bound(NamedTuple):
    """A limit that a setting can have."""

    key: str
    """Its key in an entry of `settable`."""
    holds: Callable[[Any, Any], bool]
    """Whether a value, the first argument, is within the limit, the second."""
    words: str
    """The words before the limit in a message."""


TYPES: Mapping[str, SettingType] = {
    "integer": SettingType(int, "an integer"),
    "number": SettingType((int, float), "a finite number"),
    "string": SettingType(str, "a string"),
    "boolean": SettingType(bool, "true or false"),
    "shape": SettingType(list, "the rows, columns and inner size of a product, as in 2048x2048x13312"),
}
"""The types that a setting can have, by their names in manifests."""
_SHAPE = re.compile("[1-9][0-9]{0,6}x[1-9][0-9]{0,6}x[1-9][0-9]{0,6}")
"""A setting of the type `shape`, as it is written in --set."""
BOUNDS = (
    Bound("minimum", operator.ge, "at least"),
    Bound("exclusive_minimum", operator.gt, "more than"),
    Bound("maximum", operator.le, "at most"),
    Bound("exclusive_maximum", operator.lt, "less than"),
)
"""The limits that a setting can have."""
NOT_ON_CPU = {
    "tf32": "a CPU has no TF32",
    "fp16": "FP16 training does not run on a CPU",
    "fp8": "FP8 training does not run on a CPU",
}
"""The precisions in which nothing runs on a CPU, each with the reason."""
WHOLE = {INFER: "the whole set once", MEASURE: "the publisher's iterations"}
"""When a full run that is not training ends, by kind of case, in the wording of a claim (a published result)."""


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
    """The number of ranks per node: processes with one device each."""
    preset: str = "reference"
    """The size of the case: `reference` is the published one, `tiny` a small one that runs on CPUs in seconds."""
    precision: str | None = None
    """The precision to execute; None for the case's default."""
    seed: int | None = None
    """The random seed; None for the case's default."""
    source: str | None = None
    """Where the data are from, `files` or `synthetic`; None for the preset's default."""
    weights: bool = False
    """Whether there is a folder of weights; without one they are random."""
    steps: int | None = None
    """The number of steps to measure; None if --steps was not given."""
    max_samples: int | None = None
    """The number of samples to measure; None if --max-samples was not given."""
    full: bool = False
    """Whether to run the case to its published end, such as convergence, instead of for a window of steps."""
    settings: tuple[str, ...] = ()
    """Hyper-parameters as NAME=VALUE."""
    roofs: bool = False
    """Whether roofs, the rates that the device reaches at most, are measured before the steps."""
    resume: bool = False
    """Whether the run resumes from its newest checkpoint."""
    out: bool = False
    """Whether there is a folder for the record and for checkpoints."""


def resolve(case: Mapping[str, Any], stack: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The configuration of a run: everything that determines what is executed, without paths and addresses.

    `window_steps` in the section `train`, `infer` or `measure` of the result is the number of steps to measure, or
    None for the run to its published end. Raises ConfigError for options that the case, its engine or the stack does
    not support.
    """
    config = choose(case, stack, options)
    _choose_layout(config)
    check_layout(case, config)
    _check_checkpoints(case, config, options)
    _choose_length(config, options)
    return config


def choose(case: Mapping[str, Any], stack: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The configuration without its layout and length, which depend on the number of ranks. Raises ConfigError."""
    if options.preset not in case["presets"]:
        raise ConfigError(
            f"{case['name']} has no {options.preset} preset",
            f"choose one of: {', '.join(sorted(case['presets']))}",
        )
    reason = stack["does_not_run"].get(case["name"]) or case["does_not_run"].get(stack["name"])
    if reason:
        raise ConfigError(
            f"{case['name']} does not run on the stack {stack['name']}: {reason}",
            "choose another stack; `flagbench list stacks` shows them",
        )
    settings = dict(read_setting(case, text) for text in options.settings)  # the last one of a name counts
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
    """A preset of a case's `presets`: the reference preset with the changes of the one called `name`."""
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
    """A preset with the values of `settings`, whose keys are names in the case's `settable`.

    A value that equals the setting's `default` is left out, so that setting it does not change the digest.
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
    """A text converted to the type `kind`, one of TYPES; the text itself if it cannot be converted.

    `setting_fault` then refuses the text, since it has the wrong type.
    """
    if kind == "boolean":
        return {"true": True, "false": False}.get(raw.lower(), raw)
    try:
        if kind == "integer":
            return int(raw)
        if kind == "number":
            return float(raw)
    except ValueError:
        return raw
    if kind == "shape" and _SHAPE.fullmatch(raw):
        return [int(size) for size in raw.split("x")]
    return raw


def setting_fault(rule: Mapping[str, Any], value: Any) -> str | None:
    """Why a value is not allowed, as in `must be at least 1`; None if `rule`, an entry of `settable`, allows it."""
    if "default" in rule and value == rule["default"]:
        return None
    setting_type = TYPES[rule["type"]]
    has_type = isinstance(value, setting_type.python_type)
    if isinstance(value, bool):  # to Python, True is an integer too
        has_type = setting_type.python_type is bool
    if not has_type:
        return f"must be {setting_type.description}"
    # NaN and infinity would pass a one-sided range, and canonical JSON cannot represent them.
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be {setting_type.description}"
    for bound in BOUNDS:
        if bound.key in rule and not bound.holds(value, rule[bound.key]):
            return f"must be {bound.words} {rule[bound.key]}"
    if "choices" in rule and value not in rule["choices"]:
        return f"must be one of: {', '.join(map(str, rule['choices']))}"
    return None


def _check_micro_batches(section: Mapping[str, Any]) -> None:
    """Raise ConfigError if the micro-batches of a section do not divide its batches."""
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
    on_cpu = stack["device"]["kind"] == "cpu"
    if requested is None:
        default: str = case["default_precision"]
        if on_cpu and default in NOT_ON_CPU:
            return "fp32"
        return default
    if requested not in case["precisions"]:
        raise ConfigError(
            f"--precision {requested}: {case['name']} does not run in it",
            f"choose one of: {', '.join(case['precisions'])}",
        )
    if on_cpu and requested in NOT_ON_CPU:
        alternatives = [name for name in case["precisions"] if name not in NOT_ON_CPU]
        raise ConfigError(
            f"--precision {requested}: {NOT_ON_CPU[requested]}",
            f"use --precision {' or '.join(alternatives)} on the {stack['name']} stack",
        )
    return requested


# Engines and layouts


def engine_of(case: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The engine of a configuration, the code that trains the model: `engine.name`, else the case's only one."""
    if "engine" in config:
        return str(config["engine"]["name"])
    return str(next(iter(case["engines"])))


def _check_engine(case: Mapping[str, Any], stack: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the engine does not support the stack or the number of nodes."""
    name = engine_of(case, config)
    engine = case["engines"][name]
    nodes = config["nodes"]
    reason = engine.get("does_not_run", {}).get(stack["name"])
    if reason:
        raise ConfigError(
            f"the {name} engine does not run on the stack {stack['name']}: {reason}",
            _suggest_engine(case, name, "choose another stack"),
        )
    if nodes > engine.get("max_nodes", nodes):
        limit = f"at most {engine['max_nodes']} nodes"
        if engine["max_nodes"] == 1:
            limit = "one node"
        raise ConfigError(
            f"--nodes {nodes}: the {name} engine supports {limit}",
            _suggest_engine(case, name, "use fewer nodes"),
        )


def _choose_layout(config: dict[str, Any]) -> None:
    """Replace `layout.tp` 0, which stands for as many tensor-parallel ranks as a node allows.

    That is all ranks of a node. If the job then has too few ranks for all stages of the pipeline, it is the number of
    the job's ranks divided by the number of stages.
    """
    section = config.get("layout", {})
    if section.get("tp") == 0:
        ranks = config["nodes"] * config["gpus"]
        ranks_per_stage = ranks // section.get("pp", 1)
        section["tp"] = max(1, min(config["gpus"], ranks_per_stage))


def check_layout(case: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the engine does not support the layout, or the layout does not divide ranks and model.

    A layout has three axes: dp (data-parallel replicas), tp (ranks that share each layer) and pp (pipeline stages).
    """
    name = engine_of(case, config)
    engine = case["engines"][name]
    section = config.get("layout", {})
    tp = section.get("tp", 1)
    pp = section.get("pp", 1)
    ranks = config["nodes"] * config["gpus"]
    if ranks % (tp * pp):
        options = " and ".join(f"--set {axis}" for axis in ("tp", "pp") if axis in case["settable"])
        raise ConfigError(
            f"{ranks} rank(s) cannot be divided into replicas of {tp * pp} ranks (tp {tp} x pp {pp})",
            f"choose --nodes and --gpus so that their product is a multiple of {tp * pp}, "
            f"or another layout by {options}",
        )
    sizes = {"dp": ranks // (tp * pp), "tp": tp, "pp": pp}
    for axis, size in sizes.items():
        if size > 1 and axis not in engine["layout"]:
            supported = ", ".join(engine["layout"]) or "one rank"
            raise ConfigError(
                f"the {name} engine does not support a layout with {axis} {size}",
                _suggest_engine(case, name, f"it supports only {supported}"),
            )
        for path in engine.get("divides", {}).get(axis, ()):
            _check_divides(config, path, axis, size)


def _check_divides(config: Mapping[str, Any], path: str, axis: str, size: int) -> None:
    """Raise ConfigError if the size of an axis does not divide the number at a path such as `model.heads`."""
    divided: Any = config
    for key in path.split("."):
        divided = divided[key]
    if divided % size:
        raise ConfigError(
            f"a layout with {axis} {size} does not divide {path}, which is {divided}",
            f"change --gpus, or the layout, so that {axis} is a divisor of {divided}",
        )


def replicas(config: Mapping[str, Any]) -> int:
    """The number of data-parallel replicas of the model in a resolved configuration."""
    section = config.get("layout", {})
    ranks: int = config["nodes"] * config["gpus"]
    ranks_per_replica = int(section.get("tp", 1) * section.get("pp", 1))
    return ranks // ranks_per_replica


def _check_checkpoints(case: Mapping[str, Any], config: Mapping[str, Any], options: Options) -> None:
    """Raise ConfigError if the run has to write checkpoints or resume, and its case or engine does not support it."""
    writes = schedule(config).get("checkpoint_every_steps")
    if options.resume and not case["resume"]:
        raise ConfigError(f"--resume: {case['name']} does not support it", "omit --resume")
    name = engine_of(case, config)
    if not case["engines"][name].get("resume", case["resume"]):
        if options.resume:
            raise _no_checkpoints_error(case, name, "--resume")
        if writes:
            raise _no_checkpoints_error(case, name, "--set checkpoint_every_steps")
    if writes and not options.out:
        raise ConfigError(
            "checkpoints are written to --out, and it is not set",
            "set --out DIR; for a job on Kubernetes, --out-pvc CLAIM",
        )


def _no_checkpoints_error(case: Mapping[str, Any], engine: str, option: str) -> ConfigError:
    """The error for an option that needs checkpoints, and an engine that has none."""
    remedy = f"omit {option}"
    suggestion = _suggest_engine(case, engine, remedy)
    if suggestion != remedy:
        remedy = f"{suggestion}, or {remedy}"
    return ConfigError(f"{option}: the {engine} engine has no checkpoints", remedy)


def _suggest_engine(case: Mapping[str, Any], engine: str, remedy: str) -> str:
    """How to choose another engine than `engine` with --set; if this case does not allow that, `remedy`."""
    settings = [name for name, rule in case["settable"].items() if rule["path"] == "engine.name"]
    other_engines = [name for name in case["engines"] if name != engine]
    if not settings or not other_engines:
        return remedy
    return f"use --set {settings[0]}={other_engines[0]}"


# Length


def schedule(config: Mapping[str, Any]) -> dict[str, Any]:
    """The section of a configuration with the length of the run: `train`, `infer` or `measure`, by kind of case."""
    section: dict[str, Any] = config[kind_of(config)]
    return section


def _choose_length(config: dict[str, Any], options: Options) -> None:
    """Set `window_steps`, the number of steps to measure, as the options request it.

    Without such an option, a run with synthetic data keeps the window of the preset. Any other run goes to its
    published end, so its window is None.
    """
    section = schedule(config)
    if options.full and section.get("laps"):
        raise ConfigError("--full: laps do not make the publisher's iterations", "omit --full, or --set laps")
    if options.steps is not None:
        section["window_steps"] = options.steps
    elif options.max_samples is not None:
        if kind_of(config) == MEASURE:
            raise ConfigError(f"--max-samples: {config['case']} has no samples", "use --steps")
        batch = section["batch_size"] * replicas(config)
        section["window_steps"] = max(1, math.ceil(options.max_samples / batch))
    elif options.full or config["data"]["source"] != "synthetic":
        section["window_steps"] = None


def measuring_seconds(section: Mapping[str, Any]) -> float:
    """The most seconds that a run of measurements takes. `section`: `measure` of its configuration.

    All measurements are made once, or as many times as there are laps. Matmuls that heat the device come before.
    """
    laps_seconds: float = section["seconds"] * section.get("laps", 1)
    heat_seconds: float = section.get("heat_seconds", 0)
    return laps_seconds + heat_seconds


def stop_rule(config: Mapping[str, Any]) -> str:
    """When a run ends, in the wording of a claim (a published result), such as `window of 200 steps`.

    Raises KeyError or TypeError if the configuration does not say it: a record that is read may contain anything.
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
    """The argument, if it is an integer. Raises TypeError for anything else."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{count!r} is not an integer")
    return count


def _number(amount: Any) -> float:
    """The argument, if it is a number. Raises TypeError for anything else."""
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
