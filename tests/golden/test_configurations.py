"""The configuration digest of each case and preset: records and claims are compared by it.

A digest may change only where what a run does changes. Then update the file and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_configurations.py --update
"""

import json
import sys
from pathlib import Path

import pytest

from flagbench_cases.shared.manifests import case_names, load_case, load_stack
from flagbench_core.config import Options, digest, resolve

pytestmark = pytest.mark.image

GOLDEN = Path(__file__).parent / "configurations.json"
STACKS = ("cpu", "cuda13")


def digest_of(case, preset, stack):
    """The digest of a case on four nodes of eight devices, which every preset can be split over."""
    return digest(resolve(load_case(case), load_stack(stack), Options(nodes=4, gpus=8, preset=preset)))


def digests():
    """Digests by case, preset and stack."""
    return {
        case: {
            preset: {stack: digest_of(case, preset, stack) for stack in STACKS}
            for preset in load_case(case)["presets"]
        }
        for case in case_names()
    }


def test_configurations_have_the_digests_on_record():
    assert digests() == json.loads(GOLDEN.read_text())


if __name__ == "__main__" and "--update" in sys.argv:
    GOLDEN.write_text(json.dumps(digests(), indent=1, sort_keys=True) + "\n")
