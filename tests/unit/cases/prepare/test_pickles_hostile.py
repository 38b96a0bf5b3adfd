"""Files of torch.save that ask for calls: none is made."""

from __future__ import annotations

import argparse
import builtins
import collections
import functools
import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from flagbench_cases.prepare.weights import pickles
from unit.cases.prepare.pickled import FORMATS, OLDER, Call, archive, refusal, save, table, text, written

pytestmark = pytest.mark.image


class Loud:
    """Its state is given to a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return argparse.Namespace, (), {"a": 1}, None, None


def calls(canary: Path) -> dict[str, Any]:
    """Contents that, if anything in them were called, would leave the file `canary`."""
    touch = f"open({str(canary)!r}, 'w').close()"
    shell = Call(os.system, f"touch {canary}")
    return {
        "os.system": shell,
        "eval": Call(builtins.eval, touch),
        "exec": Call(builtins.exec, touch),
        "getattr": Call(builtins.getattr, shell, "x"),
        "partial": Call(functools.partial, os.system, f"touch {canary}"),
        "subprocess": Call(subprocess.call, ["touch", str(canary)]),
        "pathlib": Call(Path.touch, canary),
        "pickle.loads": Call(pickle.loads, pickle.dumps(shell)),
        "torch.load": Call(torch.load, str(canary)),
        "numpy.load": Call(numpy.load, str(canary), None, True),
        "beside the weights": {"module": {"a": torch.ones(2)}, "args": argparse.Namespace(x=shell)},
        "in a table": collections.OrderedDict(inner=[shell]),
        "in a state": {"module": {}, "x": [Loud(), Call(os.mkdir, str(canary))]},
    }


@FORMATS
@pytest.mark.parametrize("name", sorted(calls(Path("canary"))))
def test_no_call_that_a_pickle_asks_for_is_made(tmp_path: Path, name: str, zipped: bool) -> None:
    canary = tmp_path / "canary"
    path = save(tmp_path / "bad.pt", calls(canary)[name], zipped)
    said = refusal(path)
    assert "is not a plain checkpoint: it uses" in said or name == "numpy.load"
    assert not canary.exists()


@FORMATS
def test_the_same_calls_would_be_made_elsewhere(tmp_path: Path, zipped: bool) -> None:
    """The canary sings when nobody forbids it; without this the test above could not fail."""
    for name in ("os.system", "exec", "beside the weights", "subprocess"):
        canary = tmp_path / name.replace(" ", "-")
        torch.load(save(tmp_path / "bad.pt", calls(canary)[name], zipped), **OLDER)
        assert canary.exists(), name


HOSTILE_OPCODES = {
    "a class's own __setstate__": written(b"cos\nsystem\n" + text("touch canary") + b"b"),
    "old object": written(b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\ncbuiltins\nobject\nNtR"),
    "instance by text": written(b"(" + text("touch canary") + b"ios\nsystem\n"),
    "instance by object": written(b"(cos\nsystem\n" + text("touch canary") + b"o"),
    "function of torch": written(b"ctorch\nload\n(" + text("x") + b"tR"),
    "program": written(b"ctorch.jit\nload\n(" + text("x") + b"tR"),
    "dotted name": b"\x80\x04\x8c\x05torch\x8c\x0chub.download\x93.",
    "extension": written(b"\x82\x01"),
    "the builder is changed": written(b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__call__") + text("x") + b"sb"),
    "the stand-in is changed": written(b"cnumpy\nndarray\n}" + text("append") + text("x") + b"sb"),
    "the table's class is changed": written(b"ccollections\nOrderedDict\n}" + text("get") + text("x") + b"sb"),
    "a storage's type is changed": written(b"ctorch\nFloatStorage\n}" + text("dtype") + text("x") + b"sb"),
    "a call of a result": written(b"cnumpy\nndarray\n)R(" + text("x") + b"tR"),
    "a tensor of nothing": table(b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00K\x01\x85K\x01\x85\x89}tR"),
    "a parameter of nothing": table(b"ctorch._utils\n_rebuild_parameter\n(N\x89}tR"),
    "a storage of text": written(b"Px\n"),
    "a storage of a stranger": written(b"(" + text("module") + b"Nt" + b"Q"),
    "a table of tables": written(b"ccollections\nOrderedDict\n(]tR"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE_OPCODES))
@pytest.mark.parametrize("bare", [False, True], ids=["zip", "bare"])
def test_hostile_opcodes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bare: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path, content = tmp_path / "bad.pt", HOSTILE_OPCODES[name]
    path.write_bytes(content) if bare else archive(path, content)
    builders = dict(pickles._BUILDS)
    refusal(path)
    assert builders == pickles._BUILDS
    assert "append" in vars(pickles.Ignored)
    assert not (tmp_path / "canary").exists()


def test_a_torchscript_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as file:
        file.writestr("program/data.pkl", table(b"N"))
        file.writestr("program/constants.pkl", written(b")"))
        file.writestr("program/code/__torch__.py", "raise")
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("the program was loaded"))
    assert "it is a TorchScript program" in refusal(tmp_path / "program.pt")
