"""What each case tells a record about a run: the conditions that claims are compared by, the data and the sizes.

The tiny presets on random data, on one rank. A change here changes which claims a run can be compared with. If it is
intended, update the file and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_descriptions.py --update
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.shared.manifests import case_names, load_case, load_stack, package_of
from flagbench_core.config import Options, resolve
from running import need_imports
from workloads import on_ranks, set_up

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "descriptions.json"
CASES = case_names()
STANDINS = {"vllm": Path(__file__).parents[1] / "standins" / "vllm"}
"""Folders with stand-ins for libraries that a description does not depend on."""
LIBRARIES = {"attention", "peft", "pointwise", "transformers", "vllm"}
"""Conditions that depend on the libraries of this environment."""
SHARED = {"device_model", "devices", "nodes", "division", "precision", "seed", "stop_rule", "torch", "cuda", "driver"}
"""Conditions of every case, which shared code adds to the record."""


def describe(case: str, folder: Path, rank: int, world: int) -> dict[str, Any]:
    """The description of a case's workload, as a record has it."""
    options = Options(preset="tiny", source="synthetic", steps=9)
    manifest = load_case(case)
    for library in manifest.get("imports", ()):
        if library in STANDINS:
            sys.path.insert(0, str(STANDINS[library]))
    config = resolve(manifest, load_stack("cpu"), options)
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % package_of(case))
    return json.loads(json.dumps(set_up(module.build, config, folder).describe()))


def described(case: str, folder: Path) -> dict[str, Any]:
    """The same from a process of its own, as Megatron-Core needs it."""
    return on_ranks(1, folder, functools.partial(describe, case))[0]


@pytest.mark.parametrize("case", CASES)
def test_description_is_the_one_on_record(tmp_path: Path, case: str) -> None:
    if not STANDINS.keys() & set(load_case(case).get("imports", ())):
        need_imports(case)
    found = described(case, tmp_path)
    names = {name for group in load_case(case)["condition_groups"].values() for name in group}
    assert set(found["conditions"]) <= names <= {*found["conditions"], *SHARED}
    for name in LIBRARIES & set(found["conditions"]):
        del found["conditions"][name]
    assert found == json.loads(GOLDEN.read_text())[case]


def update() -> None:
    """Write the descriptions of this version."""
    content = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            content[case] = described(case, Path(folder))
        for name in LIBRARIES & set(content[case]["conditions"]):
            del content[case]["conditions"][name]
    GOLDEN.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__" and "--update" in sys.argv:
    update()
