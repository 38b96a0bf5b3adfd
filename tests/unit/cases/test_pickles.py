"""Files of torch.save: what torch.load would read is read alike, and nothing that a hostile one asks for happens."""

from __future__ import annotations

import argparse
import builtins
import collections
import functools
import io
import multiprocessing
import os
import pickle
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from flagbench_cases import weights
from flagbench_cases.errors import DataError, ExitCode
from flagbench_cases.weights import pickles

pytestmark = pytest.mark.image

# torch.load's two formats; the older one is what checkpoints before torch 1.6 are in.
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
OLDER = {"weights_only": False} if hasattr(torch, "compile") else {}


def save(path: Path, content: Any, zipped: bool = True) -> str:
    torch.save(content, str(path), _use_new_zipfile_serialization=zipped)
    return str(path)


def refusal(path: Any, inside: Any = ()) -> str:
    """The message of the DataError that reading ends in."""
    with pytest.raises(DataError) as caught:
        weights.read_pickled(str(path), inside)
    assert caught.value.code == ExitCode.DATA == 3
    assert caught.value.remedy
    return caught.value.message


# What is read


@FORMATS
def test_every_type_and_view_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    types = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    types += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    state = {str(kind): base.to(kind) for kind in types}
    state.update(
        base=base, transposed=base.t(), part=base[1:3, ::2], scalar=torch.tensor(3.5), empty=torch.ones(0, 3)
    )
    state["parameter"] = torch.nn.Parameter(torch.randn(3))
    path = save(tmp_path / "state.pt", collections.OrderedDict(state), zipped)
    found, expected = weights.read_pickled(path, ()), torch.load(path, **OLDER)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert found["part"].data_ptr() - found["base"].data_ptr() == 6 * 4, "views share their storage, as they did"


@FORMATS
def test_the_weights_of_a_training_program_are_found_among_its_other_things(tmp_path: Path, zipped: bool) -> None:
    """As DeepSpeed and Megatron save them: arguments, random states and counters lie beside `module`."""
    module = collections.OrderedDict(a=torch.randn(3, 2).half(), b=torch.ones(2))
    module._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]  # as state_dict() leaves it
    content = {
        "module": module,
        "optimizer": {"state": {0: {"exp_avg": torch.randn(3)}}, "loss_scaler": argparse.Namespace(scale=2.0**32)},
        "args": argparse.Namespace(lr=1e-5, betas=(0.9, 0.999)),
        "np_rng_state": numpy.random.RandomState(1).get_state(),
        "scalar": numpy.float64(2.5),
        "names": {"x"},
        "shape": torch.Size([2, 3]),
        "precision": torch.float16,
        "counts": collections.defaultdict(list, a=[1]),
        "done": True,
        "iteration": 2**70,
    }
    path = save(tmp_path / "mp_rank_00_model_states.pt", content, zipped)
    found = weights.read_pickled(path)
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"], module["a"])
    assert "holds" in refusal(path, ("model",))
    assert "is not a table of tensors" in refusal(path, ("optimizer",))
    assert "['module']['a'] is not a table of tensors" in refusal(path, ("module", "a"))


def test_classes_that_are_not_installed_do_not_matter(tmp_path: Path) -> None:
    """A pickle that names deepspeed's loss scaler is read where there is no deepspeed, and none is imported."""
    content = pickle.dumps({"scaler": Placeholder(), "module": {}}, protocol=2)
    content = content.replace(Placeholder.__module__.encode(), b"deepspeed.runtime.fp16.loss_scaler")
    unpickled = pickles.TensorUnpickler(io.BytesIO(content)).load()
    assert isinstance(unpickled["scaler"], pickles.Inert)
    assert unpickled["module"] == {}


class Placeholder:
    """An object of a module whose name is replaced in its pickle."""

    def __init__(self) -> None:
        self.scale = 2.0**32


def test_what_is_changed_in_memory_does_not_reach_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "state.pt", {"a": torch.zeros(4)})
    weights.read_pickled(path, ())["a"].fill_(1)
    assert torch.equal(weights.read_pickled(path, ())["a"], torch.zeros(4))


# What is hostile


class Call:
    """Pickles as a call: unpickling it calls `function` with `arguments`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


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
    assert "is not a plain checkpoint: it asks for" in said or name == "numpy.load"
    assert not canary.exists()


@FORMATS
def test_the_same_calls_would_be_made_elsewhere(tmp_path: Path, zipped: bool) -> None:
    """The canary sings when nobody forbids it; without this the test above could not fail."""
    for name in ("os.system", "exec", "beside the weights", "subprocess"):
        canary = tmp_path / name.replace(" ", "-")
        torch.load(save(tmp_path / "bad.pt", calls(canary)[name], zipped), **OLDER)
        assert canary.exists(), name


def written(body: bytes) -> bytes:
    """A pickle of protocol 2 from its opcodes."""
    return b"\x80\x02" + body + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def archive(path: Path, content: bytes, **members: bytes) -> Path:
    """A zip as torch.save writes it around a pickle of one's own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", content)
        for name, data in members.items():
            file.writestr(f"archive/data/{name}", data)
    return path


def storage(numel: bytes, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """Opcodes that leave a storage of so many elements on the stack; `numel` is the opcode of a number."""
    pid = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + numel + b"t"
    return pid + b"Q"


def tensor(stored: bytes, size: bytes, stride: bytes, offset: bytes = b"K\x00") -> bytes:
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + offset + size + stride + b"\x89}tR"


def table(value: bytes) -> bytes:
    return written(b"}" + text("a") + value + b"s")


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
    assert "append" in vars(pickles.Inert)
    assert not (tmp_path / "canary").exists()


def test_a_torchscript_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as file:
        file.writestr("program/data.pkl", table(b"N"))
        file.writestr("program/constants.pkl", written(b")"))
        file.writestr("program/code/__torch__.py", "raise")
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("the program was loaded"))
    assert "it is a TorchScript program" in refusal(tmp_path / "program.pt")


# What asks for more than there is

ONE, MANY = b"K\x04", b"\x8a\x08" + struct.pack("<q", 2**58)
FOUR = struct.pack("<4f", 1, 2, 3, 4)
HUGE = {
    "storage": tensor(storage(MANY), b"K\x04\x85", b"K\x01\x85"),
    "size": tensor(storage(ONE), MANY + b"\x85", b"K\x01\x85"),
    "size without stride": tensor(storage(ONE), MANY + b"\x85", b"K\x00\x85"),
    "offset": tensor(storage(ONE), b"K\x04\x85", b"K\x01\x85", MANY),
    "stride": tensor(storage(ONE), b"K\x02\x85", MANY + b"\x85"),
    "negative stride": tensor(storage(ONE), b"K\x04\x85", b"J\xff\xff\xff\xff\x85"),
    "negative offset": tensor(storage(ONE), b"K\x01\x85", b"K\x01\x85", b"J\xfe\xff\xff\xff"),
    "ranks that differ": tensor(storage(ONE), b"K\x02K\x02\x86", b"K\x01\x85"),
    "another storage": tensor(storage(ONE, "1"), b"K\x04\x85", b"K\x01\x85"),
    "wider type": tensor(storage(ONE, kind="DoubleStorage"), b"K\x04\x85", b"K\x01\x85"),
}


def test_the_tensor_that_these_are_made_from_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "good.pt", table(tensor(storage(ONE), b"K\x04\x85", b"K\x01\x85")), **{"0": FOUR})
    assert weights.read_pickled(str(path), ())["a"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", sorted(HUGE))
def test_what_a_tensor_declares_is_held_against_the_file(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "bad.pt", table(HUGE[name]), **{"0": FOUR})
    assert "is not a plain checkpoint" in refusal(path)


@pytest.mark.parametrize("count", [2**58, 5, -1])
def test_what_an_old_file_declares_is_held_against_it_too(tmp_path: Path, count: int) -> None:
    path = Path(save(tmp_path / "state.pt", {"a": torch.ones(4)}, zipped=False))
    content = path.read_bytes()
    at = len(content) - 4 * 4 - 8
    assert struct.unpack_from("<q", content, at)[0] == 4
    path.write_bytes(content[:at] + struct.pack("<q", count) + content[at + 8 :])
    assert "declares" in refusal(path)


@pytest.mark.parametrize(
    "bomb",
    [
        b"Nr\xf0\xff\xff\xff0",  # the memo of number 4294967280
        b"\x8e" + struct.pack("<Q", 2**40),  # a petabyte of text follows
        b"\x8d" + struct.pack("<Q", 2**40),
        b"\x96" + struct.pack("<Q", 2**40),
        b"\x95" + struct.pack("<Q", 2**40),
        b"\x8b" + struct.pack("<i", 2**31 - 1),
        b"T" + struct.pack("<i", 2**31 - 1),
    ],
    ids=["memo", "bytes", "text", "bytearray", "frame", "number", "string"],
)
def test_no_room_is_made_for_what_is_not_there(tmp_path: Path, bomb: bytes) -> None:
    import resource

    path = archive(tmp_path / "bad.pt", b"\x80\x04}" + bomb)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 200_000  # kB


# Tuples of two, each member the one before: as many hashes as 2**60 to know the hash of the last.
TREE = b")" + b"2\x86" * 60
KEYS = {
    "key": b"}" + TREE + b"K\x01s",
    "keys": b"}(" + text("a") + b"K\x01" + TREE + b"K\x01u",
    "key of a table": b"ccollections\nOrderedDict\n)R" + TREE + b"K\x01s",
    "member": b"\x8f(" + TREE + b"\x90",
    "tensor's storage": b"}" + storage(ONE) + b"K\x01s",
    "number of many digits": b"}\x8a\xff" + b"\x7f" * 255 + b"K\x01s",
}


def refusal_of(path: Path, told: Any) -> None:
    told.send(refusal(path))


def refused_apart(path: Path) -> str:
    """The refusal, by a process that can be given up, or crash."""
    fork = multiprocessing.get_context("fork")
    told, tells = fork.Pipe(duplex=False)
    process = fork.Process(target=refusal_of, args=(path, tells))
    process.start()
    tells.close()
    process.join(20)
    process.kill()
    process.join()
    assert process.exitcode == 0
    return str(told.recv())


@pytest.mark.parametrize("name", sorted(KEYS))
def test_a_key_is_a_name_or_a_number(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "bad.pt", b"\x80\x04" + KEYS[name] + b".")
    assert "is not a plain checkpoint: it has a key that is neither" in refused_apart(path)


def test_keys_of_every_plain_kind_are_taken(tmp_path: Path) -> None:
    content = {"a": 1, 2: 1, 2.5: 1, True: 1, None: 1, b"x": 1, "set": {"x", 2, None, 0.5}}
    found = pickles.TensorUnpickler(io.BytesIO(pickle.dumps(content, protocol=4))).load()
    assert found == content
    path = save(tmp_path / "state.pt", {"counts": {numpy.float64(0.5): 1}, "module": {"a": torch.ones(2)}})
    assert weights.read_pickled(path)["a"].tolist() == [1, 1]


def test_a_call_has_few_arguments(tmp_path: Path) -> None:
    """A long tuple that is handed to one call after another costs its length each time."""
    body = b"cargparse\nNamespace\nq\x00(" + b"N" * 100 + b"tq\x01" + b"h\x00h\x01R0" * 2 + b"}"
    assert "arguments" in refusal(archive(tmp_path / "bad.pt", written(body)))
    assert "arguments" in refusal(archive(tmp_path / "new.pt", written(body.replace(b"R0", b"\x810"))))


@pytest.mark.parametrize("name", ["tuples", "lists", "dicts", "tables"])
def test_what_is_nested_too_deep_for_a_stack_ends_no_process(tmp_path: Path, name: str) -> None:
    """Neither read nor given back by a function that calls itself."""
    times = 200_000  # a frame of some 100 bytes each would fill any stack
    around = {
        "tuples": (b")", b"\x85" * times),
        "lists": (b"]" * times, b"a" * (times - 1)),
        "dicts": (b"}" + b"K\x00}" * times, b"s" * times),
        "tables": (b"ccollections\nOrderedDict\nq\x00)R" + b"K\x00h\x00)R" * times, b"s" * times),
    }
    path = archive(tmp_path / "deep.pt", written(b"".join(around[name])))
    assert "is not a table of tensors" in refused_apart(path)


def test_a_packed_archive_is_refused(tmp_path: Path) -> None:
    """Ten megabytes that unpack to ten gigabytes; torch stores its members as they are."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", table(tensor(storage(ONE), b"K\x04\x85", b"K\x01\x85")))
        file.writestr("archive/data/0", bytes(10**6))
    assert "packed or encrypted" in refusal(tmp_path / "bomb.pt")


def test_a_member_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "bad.pt", table(tensor(storage(ONE), b"K\x04\x85", b"K\x01\x85")), **{"0": FOUR})
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02")  # the last entry of the directory; sizes at 20 and 24
    path.write_bytes(content[: at + 20] + struct.pack("<II", 2**30, 2**30) + content[at + 28 :])
    assert "outside of the file" in refusal(path)


@FORMATS
def test_a_changed_number_is_noticed_where_the_file_has_sums(tmp_path: Path, zipped: bool) -> None:
    path = Path(save(tmp_path / "state.pt", {"a": torch.full((4,), 7.0)}, zipped))
    seven, eight = struct.pack("<f", 7.0), struct.pack("<f", 8.0)
    path.write_bytes(path.read_bytes().replace(seven * 4, seven * 3 + eight))
    if zipped:
        assert "a part of it is damaged" in refusal(path)
    else:
        assert weights.read_pickled(str(path), ())["a"].tolist() == [7, 7, 7, 8]


@FORMATS
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, zipped: bool) -> None:
    path = Path(save(tmp_path / "state.pt", {"a": torch.ones(40), "b": torch.zeros(3)}, zipped))
    content = path.read_bytes()
    for kept in [0, 1, 4, *range(5, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:kept])
        refusal(path)


@FORMATS
def test_a_file_with_any_byte_changed_is_refused_or_read(tmp_path: Path, zipped: bool) -> None:
    """Never another error, and never a tensor of another shape's size than the file has room for."""
    path = Path(save(tmp_path / "state.pt", {"a": torch.ones(4)}, zipped))
    content = path.read_bytes()
    refused = 0
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            found = weights.read_pickled(str(path), ())
        except DataError:
            refused += 1
        else:
            assert all(value.numel() <= len(content) for value in found.values())
    assert refused
