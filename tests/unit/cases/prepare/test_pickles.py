"""Files of torch.save: what torch.load reads is read alike, and what is damaged or asks for too much is refused."""

from __future__ import annotations

import argparse
import collections
import io
import multiprocessing
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from flagbench_cases.prepare import weights
from flagbench_cases.prepare.weights import pickles
from flagbench_cases.shared.errors import DataError
from unit.cases.prepare.pickled import FORMATS, OLDER, archive, refusal, save, storage, table, tensor, text, written

pytestmark = pytest.mark.image


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
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name
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
    assert "it has" in refusal(path, ("model",))
    assert "is not a table of tensors" in refusal(path, ("optimizer",))
    assert "['module']['a'] is not a table of tensors" in refusal(path, ("module", "a"))


def test_classes_that_are_not_installed_do_not_matter(tmp_path: Path) -> None:
    """A pickle that names deepspeed's loss scaler is read where there is no deepspeed, and none is imported."""
    content = pickle.dumps({"scaler": Placeholder(), "module": {}}, protocol=2)
    content = content.replace(Placeholder.__module__.encode(), b"deepspeed.runtime.fp16.loss_scaler")
    unpickled = pickles.TensorUnpickler(io.BytesIO(content)).load()
    assert isinstance(unpickled["scaler"], pickles.Ignored)
    assert unpickled["module"] == {}


class Placeholder:
    """An object of a module whose name is replaced in its pickle."""

    def __init__(self) -> None:
        self.scale = 2.0**32


def test_what_is_changed_in_memory_does_not_reach_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "state.pt", {"a": torch.zeros(4)})
    weights.read_pickled(path, ())["a"].fill_(1)
    assert torch.equal(weights.read_pickled(path, ())["a"], torch.zeros(4))


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
    times = 100_000  # frames of some 100 bytes each are more than the usual stack of 8 MiB
    around = {
        "tuples": (b")", b"\x85" * times),
        "lists": (b"]" * times, b"a" * (times - 1)),
        "dicts": (b"}" + b"K\x00}" * times, b"s" * times),
        "tables": (b"ccollections\nOrderedDict\nq\x00)R" + b"K\x00h\x00)R" * times, b"s" * times),
    }
    path = archive(tmp_path / "deep.pt", written(b"".join(around[name])))
    assert "is not a table of tensors" in refused_apart(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(100), b"<html>404</html>", b"\x80\x02N."])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    assert "state.pt" in refusal(tmp_path / "state.pt")


@pytest.mark.parametrize("state", [[torch.ones(2)], {"a": 1}, {0: torch.ones(2)}, {"a": {"b": torch.ones(2)}}])
def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path, state: Any) -> None:
    assert "state.pt" in refusal(save(tmp_path / "state.pt", state))


def test_a_packed_archive_is_refused(tmp_path: Path) -> None:
    """Ten megabytes that unpack to ten gigabytes; torch stores its members as they are."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", table(tensor(storage(ONE), b"K\x04\x85", b"K\x01\x85")))
        file.writestr("archive/data/0", bytes(10**6))
    assert "it has a compressed or encrypted member, which torch does not write" in refusal(tmp_path / "bomb.pt")


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
