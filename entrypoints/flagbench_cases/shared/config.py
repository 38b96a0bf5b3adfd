"""Resolves a case manifest and command-line arguments into one configuration, and computes its digest."""

import copy
import hashlib
import json
import math
import os
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases.shared import engine_support
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.layout import layout_of
from flagbench_core import DIVISION
from flagbench_core.evidence.section import INFER, MEASURE, kind_of

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(os.path.dirname(HERE), "cases")
TYPES = {"integer": int, "number": float, "string": str, "boolean": bool}
NOT_ON_CPU = {
    "tf32": "a CPU has no TF32",
    "fp16": "FP16 training does not run on a CPU",
    "fp8": "FP8 training does not run on a CPU",
}


def case_names() -> List[str]:
    """The cases in this image: every folder with a compiled case.json; some have no code of their own."""
    return sorted(
        name.replace("_", "-") for name in os.listdir(CASES) if os.path.isfile(os.path.join(CASES, name, "case.json"))
    )


def load_case(name: str) -> Dict[str, Any]:
    """The compiled manifest of a case. Raises UsageError for an unknown one."""
    if name not in case_names():
        raise UsageError("unknown case %r" % name, "choose one of: %s" % (", ".join(case_names()) or "none"))
    return _read_json(os.path.join(CASES, name.replace("-", "_"), "case.json"))


def package_of(name: str) -> str:
    """The package below `cases` with the code of a case: that of its family, or its own."""
    return load_case(name).get("family", name).replace("-", "_")


def load_stack(name: str) -> Dict[str, Any]:
    """The compiled manifest of a stack. Raises UsageError for an unknown one."""
    folder = os.path.join(HERE, "stacks")
    known = sorted(f[: -len(".json")] for f in os.listdir(folder) if f.endswith(".json"))
    if name not in known:
        raise UsageError(
            "unknown stack %r" % name,
            "set FLAGBENCH_STACK to one of: %s" % ", ".join(known),
        )
    return _read_json(os.path.join(folder, name + ".json"))


def _read_json(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


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
    """Parse `--set NAME=VALUE` into the path and typed value to set. Raises UsageError if it is not settable."""
    name, equals, raw = text.partition("=")
    settable = case["settable"]
    if not equals:
        raise UsageError("--set %s has no value" % text, "write --set NAME=VALUE")
    if name not in settable:
        raise UsageError(
            "--set %s: not a settable hyper-parameter of %s" % (name, case["name"]),
            "choose one of: %s" % ", ".join(sorted(settable)),
        )
    rule = settable[name]
    value = _typed(name, raw, rule["type"])
    for key, broken, words in (
        ("minimum", lambda v, b: v < b, "at least"),
        ("exclusive_minimum", lambda v, b: v <= b, "more than"),
        ("maximum", lambda v, b: v > b, "at most"),
        ("exclusive_maximum", lambda v, b: v >= b, "less than"),
    ):
        if key in rule and broken(value, rule[key]):
            raise UsageError("--set %s: %s is out of range" % (name, raw), "it must be %s %s" % (words, rule[key]))
    if "choices" in rule and value not in rule["choices"]:
        raise UsageError(
            "--set %s: %s is not valid" % (name, raw),
            "choose one of: %s" % ", ".join(str(c) for c in rule["choices"]),
        )
    return rule["path"].split("."), value


def _typed(name: str, raw: str, kind: str) -> Any:
    if kind == "boolean":
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise UsageError("--set %s: %r is not a boolean" % (name, raw), "write true or false")
    try:
        value = TYPES[kind](raw)
    except ValueError:
        words = "an integer" if kind == "integer" else "a %s" % kind
        raise UsageError("--set %s: %r is not %s" % (name, raw, words), "give %s" % words) from None
    if isinstance(value, float) and not math.isfinite(value):
        # It would pass a one-sided range, and canonical JSON cannot represent it.
        raise UsageError("--set %s: %s is not a finite number" % (name, raw), "give a finite number")
    return value


def choose_precision(case: Dict[str, Any], stack: Dict[str, Any], asked: Optional[str]) -> str:
    """The precision to execute: the requested one, else the case's default, where a CPU uses fp32 for TF32 and
    FP16."""
    processor = stack["device"]["kind"] == "cpu"
    if asked is None:
        return "fp32" if case["default_precision"] in NOT_ON_CPU and processor else case["default_precision"]
    if asked not in case["precisions"]:
        raise UsageError(
            "%s does not run in %s" % (case["name"], asked),
            "choose one of: %s" % ", ".join(case["precisions"]),
        )
    if asked in NOT_ON_CPU and processor:
        others = [name for name in case["precisions"] if name not in NOT_ON_CPU]
        raise UsageError(
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
        raise UsageError(
            "%s has no %s preset" % (case["name"], preset),
            "choose one of: %s" % ", ".join(sorted(case["presets"])),
        )
    why = stack["does_not_run"].get(case["name"]) or case["does_not_run"].get(stack["name"])
    if why:
        raise UsageError(
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
        raise UsageError("--max-samples: %s has no samples" % case["name"], "use --steps")
    _choose_layout(config)
    engine_support.check(case, stack, config)
    _choose_length(schedule(config), data["source"], layout_of(config).dp, steps, max_samples, full)
    return config


def _check_micro_batches(section: Dict[str, Any]) -> None:
    micro = section.get("micro_batch_size")
    if micro is not None and section["batch_size"] % micro:
        raise UsageError(
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
    return config[kind_of(config)]


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
