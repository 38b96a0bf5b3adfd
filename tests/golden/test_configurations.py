"""The configuration digest of each case and preset: records and claims are compared by it.

A digest may change only where what a run does changes. Then update the file and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_configurations.py --update
"""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from flagbench_cases.shared.manifests import case_names, load_case, load_stack
from flagbench_core.config import Options, digest, resolve

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "configurations.json"
STACKS = ("cpu", "cuda13")
FOUR_NODES = Options(nodes=4, gpus=8)
"""Every preset can be split over them, unless its case serves, which it does on one node."""
FOUR_DEVICES = Options(nodes=1, gpus=4)


def digest_of(case, preset, stack):
    """The digest of a case on several devices."""
    devices = FOUR_NODES
    if case.startswith("serve-"):
        devices = FOUR_DEVICES
    return digest(resolve(load_case(case), load_stack(stack), dataclasses.replace(devices, preset=preset)))


def digests():
    """Digests by case, preset and stack."""
    by_case = {}
    for case in case_names():
        stacks = [stack for stack in STACKS if stack not in load_case(case)["does_not_run"]]
        by_case[case] = {
            preset: {stack: digest_of(case, preset, stack) for stack in stacks}
            for preset in load_case(case)["presets"]
        }
    return by_case


def test_configurations_have_the_digests_on_record():
    assert digests() == json.loads(GOLDEN.read_text())


if __name__ == "__main__" and "--update" in sys.argv:
    GOLDEN.write_text(json.dumps(digests(), indent=1, sort_keys=True) + "\n")
