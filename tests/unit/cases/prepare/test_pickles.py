"""Files of torch.save: the tensors of real training programs are read, and no call in a file is made."""

from __future__ import annotations

import argparse
import builtins
import collections
import os
import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from flagbench_cases.prepare import pickles
from flagbench_cases.shared.errors import DataError
from unit.cases.prepare.pickled import CURRENT_TORCH, FORMATS, Call, save
from unit.cases.refusal import refusal, refuses

pytestmark = pytest.mark.image

CLASSES = {
    "megatron": "ModelType",
    "apex": "LossScaler",
    "deepspeed": "DynamicLossScaler",
    "fp16": "FP16_Optimizer",
    "learning_rates": "AnnealingLR",
}


@pytest.fixture
def training_state(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Megatron, apex, DeepSpeed and the fp16 module of GLM save beside the weights; their packages are not there
    when it is read."""
    state: dict[str, Any] = {}
    for module, name in CLASSES.items():
        made = type(name, (), {"__module__": module})
        monkeypatch.setitem(sys.modules, module, argparse.Namespace(**{name: made}))  # type: ignore[arg-type]
        state[module] = made()
        state[module].scale = 2.0**16
    return {
        **state,
        "args": argparse.Namespace(lr=1e-5, betas=(0.9, 0.999), precision=torch.float16, done=True, seed=None),
        "rng_state": [{"random": random.Random(0).getstate(), "numpy": numpy.random.RandomState(0).get_state()}],
        "optimizer": {"state": {0: {"exp_avg": torch.randn(3)}}, "loss": numpy.float64(2.5)},
        "csr_tensor_module_names": {"embedding"},
        "iteration": 2**40,
    }


@CURRENT_TORCH
@FORMATS
def test_weights_among_training_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training_state: dict[str, Any], zipped: bool
) -> None:
    module = collections.OrderedDict(a=torch.randn(3, 2).half(), b=torch.nn.Parameter(torch.ones(2)))
    module["part"] = module["a"][1:, ::2]
    module._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]  # as state_dict() leaves it
    path = save(tmp_path / "mp_rank_00_model_states.pt", {**training_state, "module": module}, zipped)
    for package in CLASSES:
        monkeypatch.delitem(sys.modules, package)
    found = pickles.read_table(path)
    assert list(found) == ["a", "b", "part"]
    assert all(torch.equal(found[name], module[name]) for name in module)
    content = pickles.read(path)
    assert {type(content[name]) for name in [*CLASSES, "args"]} == {pickles.Ignored}
    assert content["iteration"] == 2**40
    with refuses(DataError, "['model']"):
        pickles.read_table(path, ("model",))
    with refuses(DataError, "['optimizer']['state']"):
        pickles.read_table(path, ("optimizer", "state"))
    with refuses(DataError, "['module']['a']"):
        pickles.read_table(path, ("module", "a"))


def hostile(canary: Path) -> dict[str, Any]:
    """Contents that leave the file `canary` if a call in them is made."""
    return {
        "os.system": Call(os.system, f"touch {canary}"),
        "eval": Call(builtins.eval, f"open({str(canary)!r}, 'w').close()"),
        "mkdir": {"module": {"a": torch.ones(2)}, "args": argparse.Namespace(x=Call(os.mkdir, str(canary)))},
    }


@CURRENT_TORCH
@FORMATS
@pytest.mark.parametrize("name", sorted(hostile(Path("canary"))))
def test_no_call_is_made(tmp_path: Path, name: str, zipped: bool) -> None:
    canary = tmp_path / "canary"
    path = save(tmp_path / "bad.pt", hostile(canary)[name], zipped)
    message = refusal(pickles.read, path)
    assert "it uses " in message
    assert "weights_only" not in message
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists(), "without the refusal above, the call is made"


@CURRENT_TORCH
@FORMATS
def test_damaged_files(tmp_path: Path, zipped: bool) -> None:
    path = Path(save(tmp_path / "state.pt", {"a": torch.full((40,), 7.0)}, zipped))
    content = path.read_bytes()
    for left in [0, 1, 4, *range(5, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:left])
        refusal(pickles.read, str(path))
    path.write_bytes(b"<html>404</html>")
    refusal(pickles.read, str(path))
    if zipped:  # the old format has no checksums
        seven, eight = struct.pack("<f", 7.0), struct.pack("<f", 8.0)
        path.write_bytes(content.replace(seven * 40, seven * 39 + eight))
        refusal(pickles.read, str(path))


def test_older_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu118")
    with refuses(DataError, "2.6", "2.5.1+cu118"):
        pickles.read_table(save(tmp_path / "state.pt", {"a": torch.ones(2)}), ())
