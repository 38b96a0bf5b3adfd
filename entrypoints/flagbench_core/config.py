"""Resolves a case manifest and the options of a run into one configuration, and computes its digest."""

import copy
import hashlib
import json
import math
import operator
from typing import Any, Dict, List, Optional, Tuple

from flagbench_core import DIVISION
from flagbench_core.evidence.section import INFER, MEASURE, kind_of

TYPES: Dict[str, Any] = {"integer": int, "number": float, "string": str, "boolean": bool}
NOT_ON_CPU = {
    "tf32": "a CPU has no TF32",
    "fp16": "FP16 training does not run on a CPU",
    "fp8": "FP8 training does not run on a CPU",
}


class ConfigError(ValueError):
    """A configuration that cannot be resolved: what is wrong, and how to fix it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def merge(base: Dict[str, Any], override: Dict[str, Any]) -> Dict[str, Any]:
    """A copy of `base` with the keys of `override` replaced, recursively."""
    result = copy.deepcopy(base)
    for key, value in override.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def canonical(config: Dict[str, Any]) -> str:
    """The canonical JSON text that the digest is computed of: sorted keys, no spaces, no NaN."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(config: Dict[str, Any]) -> str:
    """`sha256:` and the hash of the canonical text."""
    return "sha256:" + hashlib.sha256(canonical(config).encode("utf-8")).hexdigest()


def parse_setting(case: Dict[str, Any], text: str) -> Tuple[List[str], Any]:
    """Parse `--set NAME=VALUE` into the path and typed value to set. Raises ConfigError if it is not settable."""
    name, equals, raw = text.partition("=")
    settable = case["settable"]
    if not equals:
        raise ConfigError("--set %s has no value" % text, "write --set NAME=VALUE")
    if name not in settable:
        raise ConfigError(
            "--set %s: not a settable hyper-parameter of %s" % (name, case["name"]),
            "choose one of: %s" % ", ".join(sorted(settable)),
        )
    rule = settable[name]
    value = _typed(name, raw, rule["type"])
    for key, broken, words in (
        ("minimum", operator.lt, "at least"),
        ("exclusive_minimum", operator.le, "more than"),
        ("maximum", operator.gt, "at most"),
        ("exclusive_maximum", operator.ge, "less than"),
    ):
        if key in rule and broken(value, rule[key]):
            raise ConfigError("--set %s: %s is out of range" % (name, raw), "it must be %s %s" % (words, rule[key]))
    if "choices" in rule and value not in rule["choices"]:
        raise ConfigError(
            "--set %s: %s is not valid" % (name, raw),
            "choose one of: %s" % ", ".join(str(c) for c in rule["choices"]),
        )
    return rule["path"].split("."), value


def _typed(name: str, raw: str, kind: str) -> Any:
    if kind == "boolean":
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ConfigError("--set %s: %r is not a boolean" % (name, raw), "write true or false")
    try:
        value = TYPES[kind](raw)
    except ValueError:
        words = "an integer" if kind == "integer" else "a %s" % kind
        raise ConfigError("--set %s: %r is not %s" % (name, raw, words), "give %s" % words) from None
    if isinstance(value, float) and not math.isfinite(value):
        # It would pass a one-sided range, and canonical JSON cannot represent it.
        raise ConfigError("--set %s: %s is not a finite number" % (name, raw), "give a finite number")
    return value


def choose_precision(case: Dict[str, Any], stack: Dict[str, Any], asked: Optional[str]) -> str:
    """The precision to execute: the requested one, else the case's default, where a CPU uses fp32 for TF32 and
    FP16."""
    processor = stack["device"]["kind"] == "cpu"
    if asked is None:
        return "fp32" if case["default_precision"] in NOT_ON_CPU and processor else case["default_precision"]
    if asked not in case["precisions"]:
        raise ConfigError(
            "%s does not run in %s" % (case["name"], asked),
            "choose one of: %s" % ", ".join(case["precisions"]),
        )
    if asked in NOT_ON_CPU and processor:
        others = [name for name in case["precisions"] if name not in NOT_ON_CPU]
        raise ConfigError(
            NOT_ON_CPU[asked],
            "use --precision %s on the %s stack" % (" or ".join(others), stack["name"]),
        )
    return asked


def resolve(
    case: Dict[str, Any],
    stack: Dict[str, Any],
    *,
    nodes: int,
    gpus: int,
    preset: str,
    precision: Optional[str],
    seed: Optional[int],
    source: Optional[str],
    weights: bool,
    steps: Optional[int],
    max_samples: Optional[int],
    full: bool,
    settings: List[str],
) -> Dict[str, Any]:
    """Everything that determines what is executed, as plain data, without paths and addresses.

    `source` is "files", "synthetic" or None (the preset's own default). `train.window_steps` of the result is
    the number of measured steps, or null for the published run to convergence.
    """
    if preset not in case["presets"]:
        raise ConfigError(
            "%s has no %s preset" % (case["name"], preset),
            "choose one of: %s" % ", ".join(sorted(case["presets"])),
        )
    why = stack["does_not_run"].get(case["name"]) or case["does_not_run"].get(stack["name"])
    if why:
        raise ConfigError(
            "%s does not run on the stack %s: %s" % (case["name"], stack["name"], why),
            "choose another stack; `flagbench list stacks` shows them",
        )
    config = preset_of(case, preset)
    for text in settings:
        path, value = parse_setting(case, text)
        section = config
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = value
    _check_micro_batches(schedule(config))
    data = config["data"]
    data["source"] = source or data.pop("default")
    data.pop("default", None)
    config.update(
        case=case["name"],
        division=DIVISION,
        preset=preset,
        precision=choose_precision(case, stack, precision),
        nodes=nodes,
        gpus=gpus,
        seed=case.get("default_seed", 0) if seed is None else seed,
        weights="pretrained" if weights else "random",
    )
    if kind_of(config) == MEASURE and max_samples is not None:
        raise ConfigError("--max-samples: %s has no samples" % case["name"], "use --steps")
    _choose_layout(config)
    check_engine(case, stack, config)
    _choose_length(schedule(config), data["source"], replicas(config), steps, max_samples, full)
    return config


def _check_micro_batches(section: Dict[str, Any]) -> None:
    micro = section.get("micro_batch_size")
    if micro is not None and section["batch_size"] % micro:
        raise ConfigError(
            "batch_size %d is not a multiple of micro_batch_size %d" % (section["batch_size"], micro),
            "make batch_size a multiple of micro_batch_size; both may be set",
        )


def _choose_layout(config: Dict[str, Any]) -> None:
    """`layout.tp` 0: the ranks of a node share every layer, as far as the stages allow."""
    section = config.get("layout", {})
    if section.get("tp") == 0:
        gpus, ranks = config["gpus"], config["nodes"] * config["gpus"]
        section["tp"] = max(1, min(gpus, ranks // section.get("pp", 1)))


def preset_of(case: Dict[str, Any], preset: str) -> Dict[str, Any]:
    """A preset: `reference`, overlaid with what it changes."""
    return merge(case["presets"]["reference"], {} if preset == "reference" else case["presets"][preset])


def schedule(config: Dict[str, Any]) -> Dict[str, Any]:
    """The section with the length of the run, named as the kind of case: `train`, `infer` or `measure`."""
    section: Dict[str, Any] = config[kind_of(config)]
    return section


def _choose_length(
    section: Dict[str, Any],
    source: str,
    replicas: int,
    steps: Optional[int],
    max_samples: Optional[int],
    full: bool,
) -> None:
    """Set `window_steps`: as requested, else None unless the data are synthetic, which keep the preset's window."""
    if steps is not None:
        section["window_steps"] = steps
    elif max_samples is not None:
        batch = section["batch_size"] * replicas
        section["window_steps"] = max(1, -(-max_samples // batch))
    elif full or source != "synthetic":
        section["window_steps"] = None


WHOLE = {INFER: "the whole set once", MEASURE: "the publisher's iterations"}
"""The stop rules of full runs that do not train; the host side has them in verdict/derivation.py."""


def stop_rule(config: Dict[str, Any]) -> str:
    """When a run ends, in the wording of a claim."""
    train = schedule(config)
    if train["window_steps"] is not None:
        return "window of %d steps" % train["window_steps"]
    if kind_of(config) in WHOLE:
        return WHOLE[kind_of(config)]
    limit = "%d epochs" % train["max_epochs"]
    if train.get("max_samples") is not None:
        limit = "%d samples" % train["max_samples"]
    return limit if train["target_acc"] is None else "acc >= %g or %s" % (train["target_acc"], limit)


def replicas(config: Dict[str, Any]) -> int:
    """The data-parallel replicas of a resolved configuration: as many as there are ranks for."""
    section = config.get("layout", {})
    ranks: int = config["nodes"] * config["gpus"]
    return ranks // int(section.get("tp", 1) * section.get("pp", 1))


def engine_of(case: Dict[str, Any], config: Dict[str, Any]) -> str:
    """The engine of a resolved configuration: `engine.name`, else the case's only engine."""
    return str(config["engine"]["name"] if "engine" in config else next(iter(case["engines"])))


def check_engine(case: Dict[str, Any], stack: Dict[str, Any], config: Dict[str, Any]) -> None:
    """Raise ConfigError if the engine does not support the stack, the number of nodes or ranks, or the layout."""
    name = engine_of(case, config)
    engine, nodes = case["engines"][name], config["nodes"]
    why = engine.get("does_not_run", {}).get(stack["name"])
    if why:
        raise ConfigError(
            "the %s engine does not run on the stack %s: %s" % (name, stack["name"], why),
            instead(case, name, "choose another stack"),
        )
    if nodes > engine.get("max_nodes", nodes):
        most = "one node" if engine["max_nodes"] == 1 else "at most %d nodes" % engine["max_nodes"]
        raise ConfigError(
            "the %s engine supports %s, but this run has %d" % (name, most, nodes),
            instead(case, name, "use fewer nodes"),
        )
    _check_layout(case, name, config)


def _check_layout(case: Dict[str, Any], name: str, config: Dict[str, Any]) -> None:
    axes, section = case["engines"][name]["layout"], config.get("layout", {})
    tp, pp = section.get("tp", 1), section.get("pp", 1)
    ranks = config["nodes"] * config["gpus"]
    if ranks % (tp * pp):
        raise ConfigError(
            "%d rank(s) cannot be divided into replicas of %d ranks (tp %d x pp %d)" % (ranks, tp * pp, tp, pp),
            "choose --nodes and --gpus so that their product is a multiple of %d, or another layout by %s"
            % (tp * pp, " and ".join("--set " + axis for axis in ("tp", "pp") if axis in case["settable"])),
        )
    for axis, size in (("dp", ranks // (tp * pp)), ("tp", tp), ("pp", pp)):
        if size > 1 and axis not in axes:
            raise ConfigError(
                "the %s engine does not support a layout with %s %d" % (name, axis, size),
                instead(case, name, "it supports only %s" % (", ".join(axes) or "one rank")),
            )
        for path in case["engines"][name].get("divides", {}).get(axis, ()):
            found: Any = config
            for key in path.split("."):
                found = found[key]
            if found % size:
                raise ConfigError(
                    "a layout with %s %d does not divide %s, which is %d" % (axis, size, path, found),
                    "change --gpus, or the layout, so that %s is a divisor of %d" % (axis, found),
                )


def check_checkpoints(case: Dict[str, Any], config: Dict[str, Any], writes: Any, resumes: Any) -> None:
    """Raise ConfigError if the run should write checkpoints or resume, and its case or engine does not support it."""
    if resumes and not case["resume"]:
        raise ConfigError("%s does not support resuming" % case["name"], "omit --resume")
    name = engine_of(case, config)
    if not case["engines"][name].get("resume", case["resume"]):
        for asked, words, option in (
            (resumes, "cannot resume from a checkpoint", "--resume"),
            (writes, "cannot write checkpoints", "--set checkpoint_every_steps"),
        ):
            if asked:
                raise ConfigError(
                    "the %s engine %s" % (name, words), instead(case, name, "omit %s" % option, or_else=True)
                )


def instead(case: Dict[str, Any], engine: str, remedy: str, or_else: bool = False) -> str:
    """The remedy; if --set can choose another engine, that instead of `remedy`, or both with `or_else`."""
    settings = [name for name, rule in case["settable"].items() if rule["path"] == "engine.name"]
    others = [name for name in case["engines"] if name != engine]
    if not settings or not others:
        return remedy
    other = "use --set %s=%s" % (settings[0], others[0])
    return "%s, or %s" % (other, remedy) if or_else else other
