"""What the image side's code must not contain, where import-linter cannot see it: clocks, frameworks, case names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import yaml

from .conftest import ROOT

PACKAGE = ROOT / "entrypoints" / "flagbench_cases"
CASES = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "manifests" / "cases").glob("*.yaml")}
NAMES = {*CASES, *(name.replace("-", "_") for name in CASES)} - {"roofs"}
"""Of cases and of their packages, but for that which every other case can begin with, by `--roofs`."""
STOPWATCH = "rank/stopwatch.py"
CLOCKS = {"time", "timeit", "datetime", "torch.utils.benchmark"}
DURATION = "datetime.timedelta"  # not a clock
CLOCK_CALLS = {"os.times", "torch.cuda.Event", "torch.Event"}
FRAMEWORKS = {"torch", "transformers", "safetensors", "peft", "accelerate", "deepspeed", "tokenizers"}
FREE_OF_TORCH = ("node/", "record/", "shared/", "telemetry/")
# What the shared loop and engines take from the configuration of whichever case has it.
OF_THE_LOOP = {
    *("engine", "tp", "pp", "layers", "checkpoint_every_steps", "evaluate_every_samples", "max_samples"),
    *("heat_seconds", "laps"),
}
SETTABLE = [name for case in CASES.values() for name in case["settable"]]
OF_ENGINES: set[str] = set()
"""The hyper-parameters in a section of the configuration that has the name of an engine, such as `vllm`."""
for case in CASES.values():
    OF_ENGINES |= {name for name, rule in case["settable"].items() if rule["path"].split(".")[0] in case["engines"]}
OF_ONE_CASE = {name for name in SETTABLE if SETTABLE.count(name) == 1} - OF_ENGINES
OWN_OPTIONS = OF_ONE_CASE - OF_THE_LOOP
"""The hyper-parameters that only one case has, and that are its own."""
# What every case may import of `engines`; the rest is an engine of that name.
FOR_ALL = {"data_parallel", "groups", "precision_switches", "products"}


def imported(node: ast.AST) -> Iterator[str]:
    """The modules that a statement or a call names: `import a.b`, `from a import b`, `import_module("a.b")`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def within(module: str, others: set[str]) -> bool:
    """Whether a module is one of others or in one of them."""
    return any(module == other or module.startswith(other + ".") for other in others)


def of_a_case(text: str) -> Iterator[str]:
    """What belongs to one case in a string: its name or its package's, its own option, the `name=` of an option."""
    yield from (word for word in re.findall(r"[\w-]+", text) if word in NAMES)
    yield from (word for word in re.findall(r"\w+(?==)", text) if word in OF_ONE_CASE)
    if text in OWN_OPTIONS:
        yield text


def findings(path: str, source: str) -> list[str]:
    """What a file of the image side, by its path in the package, must not contain."""
    tree, folder = ast.parse(source), path.partition("/")[0]
    untimed = folder in ("rank", "cases") and path != STOPWATCH
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    problems = []
    for node in ast.walk(tree):
        for module in imported(node):
            problems += import_findings(path, module, untimed)
        if untimed and isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCK_CALLS:
            problems.append(f"clock: {ast.unparse(node)}")
        if not isinstance(node, ast.Constant) or id(node) in docs:
            continue
        if case_of(path) is None and isinstance(node.value, str):
            problems += [f"case: {word}" for word in of_a_case(node.value)]
    return problems


def case_of(path: str) -> str | None:
    """The package of the case that a file belongs to; None for code that all cases share."""
    parts = path.split("/")
    if parts[0] != "cases" or len(parts) < 3:
        return None
    return parts[1]


def import_findings(path: str, module: str, untimed: bool) -> Iterator[str]:
    """What is wrong with a file's import of a module; `untimed`: it may not read a clock."""
    if untimed and within(module, CLOCKS | CLOCK_CALLS) and module != DURATION:
        yield f"clock: {module}"
    if path.startswith(FREE_OF_TORCH) and within(module, FRAMEWORKS):
        yield f"framework: {module}"
    case = case_of(path)
    if case is not None and module.startswith("flagbench_cases.engines."):
        engine = module.split(".")[2]
        if engine not in FOR_ALL | engines_of(case):
            yield f"engine: {engine}"


def engines_of(package: str) -> set[str]:
    """The engines in the manifests of the cases with that package."""
    named = ((case.get("family", name).replace("-", "_"), case["engines"]) for name, case in CASES.items())
    return {engine for owner, engines in named for engine in engines if owner == package}


def test_the_image_side_follows_the_rules() -> None:
    found = {
        str(path.relative_to(PACKAGE)): findings(path.relative_to(PACKAGE).as_posix(), path.read_text())
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("path", "source", "finding"),
    [
        ("cases/glm/workload.py", "from datetime import datetime", "clock: datetime.datetime"),
        ("rank/run.py", "import time", "clock: time"),
        ("rank/run.py", "import os\nos.times()", "clock: os.times"),
        ("shared/spool.py", "import importlib\nimportlib.import_module('torch')", "framework: torch"),
        ("node/main.py", "import safetensors.torch", "framework: safetensors.torch"),
        ("cases/glm/workload.py", "from flagbench_cases.engines import deepspeed", "engine: deepspeed"),
        ("rank/run.py", "if name == 'glm':\n    pass", "case: glm"),
        ("engines/preflight.py", "stage = config['zero_stage']", "case: zero_stage"),
        ("rank/run.py", "x = 'flagbench_cases.cases.glm.model'", "case: glm"),
        ("prepare/command.py", "x = 'set it with --set engine=deepspeed'", "case: engine"),
        ("rank/run.py", "from os import times", "clock: os.times"),
        ("cases/glm/model.py", "from torch.cuda import Event", "clock: torch.cuda.Event"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str, finding: str) -> None:
    assert findings(path, source) == [finding]
