"""Reads the two file formats of torch.save without torch.load: the zip format, and the legacy one before torch 1.6.

Tensors are memory-mapped, so that a checkpoint with optimizer state takes memory only for its weights. All declared
sizes are checked against the file: torch would allocate them, or read out of bounds.
"""

import errno
import mmap
import os
import pickle
import struct
import sys
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, NamedTuple, Optional, Set, Tuple

import torch

from flagbench_cases.prepare.weights.pickles import Refused, StorageRef, TensorRef, TensorUnpickler

ZIP = b"PK\x03\x04"
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., lengths of the name and of the extra field
_COUNT = struct.Struct("<q")


class Region(NamedTuple):
    """The position of a storage in the file, and its CRC if the file has one."""

    start: int
    size: int
    crc: Optional[int] = None


class Archive:
    """An opened file: `content` is the saved object, with a TensorRef for every tensor."""

    def __init__(self, content: Any, regions: Dict[str, Region], mapped: mmap.mmap) -> None:
        self.content = content
        self._regions = regions
        self._mapped = mapped
        self._whole: Set[str] = set()

    def tensor(self, ref: TensorRef) -> torch.Tensor:
        """The tensor, memory-mapped copy-on-write.

        Raises Refused if the file does not contain what it declares, ValueError if the CRC does not match.
        """
        storage = ref.storage
        region = self._regions.get(storage.key)
        itemsize = torch.empty(0, dtype=storage.dtype).element_size()
        if region is None or region.size < storage.numel * itemsize:
            raise Refused("it does not contain the %d elements that it declares for a storage" % storage.numel)
        # The count is checked too: with a stride of 0, a petabyte could be declared on one element.
        reach = ref.offset + sum((n - 1) * step for n, step in zip(ref.size, ref.stride)) + 1
        count = 1
        for n in ref.size:
            count *= n
        if count == 0:
            return torch.empty(ref.size, dtype=storage.dtype)
        if reach > storage.numel or count > storage.numel:
            raise Refused("it describes a tensor larger than its storage")
        if storage.key not in self._whole:
            check_sum(region, self._mapped)
            self._whole.add(storage.key)
        flat = torch.frombuffer(self._mapped, dtype=storage.dtype, count=storage.numel, offset=region.start)
        return flat.as_strided(ref.size, ref.stride, ref.offset)


def open_archive(path: str) -> Archive:
    """Open a file written by torch.save.

    Raises:
        pickle.UnpicklingError: (including Refused) it contains more than tensors.
        OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError, zipfile.BadZipFile,
        struct.error: the file is damaged.
    """
    if sys.byteorder != "little":
        raise Refused("it is little-endian, but this machine is not")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise EOFError("it is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if file.read(len(ZIP)) == ZIP:
            return _open_zip(file, mapped)
        file.seek(0)
        return _open_legacy(file, mapped)


def _open_zip(file: BinaryIO, mapped: mmap.mmap) -> Archive:
    """`NAME/data.pkl` and a stored member `NAME/data/KEY` for every storage."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if any(name.split("/")[-1] == "constants.pkl" for name in members):
            raise Refused("it is a TorchScript program")
        pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("it contains %d pickles of tensors" % len(pickles))
        root = pickles[0][: -len("data.pkl")]
        order = members.get(root + "byteorder")
        regions = {name: _region(info, mapped) for name, info in members.items() if not name.endswith("/")}
    if order is not None and _bytes(regions[order.filename], mapped) != b"little":
        raise Refused("its byte order is not little-endian")
    region = regions[pickles[0]]
    check_sum(region, mapped)
    file.seek(region.start)
    content = TensorUnpickler(file, region.size).load()
    prefix = root + "data/"
    stored = {name[len(prefix) :]: at for name, at in regions.items() if name.startswith(prefix)}
    return Archive(content, stored, mapped)


def _bytes(region: Region, mapped: mmap.mmap) -> bytes:
    return mapped[region.start : region.start + min(region.size, 16)]


def _region(info: zipfile.ZipInfo, mapped: mmap.mmap) -> Region:
    """The position of a member's bytes. Raises Refused if it is compressed, encrypted or out of bounds."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
        raise Refused("it has a compressed or encrypted member, which torch does not write")
    if not 0 <= info.header_offset <= len(mapped) - _LOCAL_HEADER.size:
        raise Refused("it has a member outside of the file")
    signature, name, extra = _LOCAL_HEADER.unpack_from(mapped, info.header_offset)
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    if signature != ZIP or start + info.file_size > len(mapped):
        raise Refused("it has a member outside of the file")
    return Region(start, info.file_size, info.CRC)


def check_sum(region: Region, mapped: mmap.mmap) -> None:
    """Raise ValueError if the CRC does not match."""
    if region.crc is None:
        return
    with memoryview(mapped) as view, view[region.start : region.start + region.size] as content:
        if zlib.crc32(content) != region.crc:
            raise ValueError("a part of it is damaged")


def _open_legacy(file: BinaryIO, mapped: mmap.mmap) -> Archive:
    """Pickles of magic number, protocol version, machine facts, content and storage keys, followed by the
    storages."""
    if TensorUnpickler(file).load() != MAGIC_NUMBER:
        raise Refused("it was not written by torch.save")
    protocol, machine = TensorUnpickler(file).load(), TensorUnpickler(file).load()
    if protocol != LEGACY_PROTOCOL or not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Refused("its version is unknown, or its byte order is not little-endian")
    unpickler = TensorUnpickler(file)
    content = unpickler.load()
    keys = TensorUnpickler(file).load()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Refused("it does not list its storages")
    regions, at = {}, file.tell()
    for key in keys:
        if key not in unpickler.storages:
            raise Refused("it has a storage that no tensor uses")
        regions[key], at = _legacy_region(unpickler.storages[key], mapped, at)
    return Archive(content, regions, mapped)


def _legacy_region(storage: StorageRef, mapped: mmap.mmap, at: int) -> Tuple[Region, int]:
    """The storage whose element count is at `at`, and the position of the next one. Raises EOFError, Refused."""
    if at + _COUNT.size > len(mapped):
        raise EOFError("it is truncated")
    count = _COUNT.unpack_from(mapped, at)[0]
    if count != storage.numel:
        raise Refused("it does not contain the %d elements that it declares for a storage" % storage.numel)
    size = count * torch.empty(0, dtype=storage.dtype).element_size()
    start = at + _COUNT.size
    if start + size > len(mapped):
        raise EOFError("it is truncated")
    return Region(start, size), start + size


DAMAGED = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    struct.error,
    zipfile.BadZipFile,
    NotImplementedError,
)
"""Exceptions caused by a damaged file."""
REFUSED = pickle.UnpicklingError


def is_lack_of_memory(error: Exception) -> bool:
    """Whether an error means that the machine is out of memory, rather than that the file is damaged."""
    return getattr(error, "errno", None) == errno.ENOMEM or "allocate memory" in str(error)
