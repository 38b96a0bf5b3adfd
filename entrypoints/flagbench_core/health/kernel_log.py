"""NVIDIA's errors (Xid) in the kernel log, by its sequence numbers, so that those of before a run are not counted.

/dev/kmsg gives one record a read, such as `4,1234,98765432,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, ...`:
priority, sequence number, microseconds and flags, and the text (Linux, Documentation/ABI/testing/dev-kmsg). Reading
it takes root, or CAP_SYSLOG where dmesg is restricted. Containers rarely may.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from flagbench_core.health.reading import NO_PERMISSION, NOT_FOUND

KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192
"""The kernel's longest record (PRINTK_MESSAGE_MAX is 2048, with escapes and a dictionary)."""
_HEAD = re.compile(r"\d+,(\d+),\d+,[^;]*;(.*)")
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?%s\): (\d+)\b" % _ADDRESS)
_OFF_THE_BUS = re.compile(r"NVRM: GPU %s: GPU has fallen off the bus" % _ADDRESS)
_FALLEN = 79
"""Its number, which the second form of its line lacks."""


@dataclass(frozen=True)
class Xid:
    """The lines of one number for one device."""

    code: int
    pci_address: str
    """Without its function: 0000:9b:00."""
    count: int
    sequence: int
    """Of the first line."""
    text: str
    """The first line."""


@dataclass(frozen=True)
class XidLog:
    """The Xid lines of a kernel log after a sequence number."""

    xids: Tuple[Xid, ...] = ()
    last: Optional[int] = None
    """The sequence number of the last record of any kind: what comes later is new."""
    refusal: Optional[str] = None
    """Why the log cannot be read, or not all of it."""

    def to_dict(self) -> Dict[str, Any]:
        """As JSON has it."""
        values: Dict[str, Any] = {"xids": [vars(xid) for xid in self.xids]}
        if self.last is not None:
            values["last"] = self.last
        if self.refusal is not None:
            values["refusal"] = self.refusal
        return values


def read_xids(after: Optional[int] = None, path: str = KMSG) -> XidLog:
    """The Xid lines after the record with the sequence number `after` (None: all that the kernel still has).

    Does not wait for new ones and never raises. `path`: in tests, a file with the same lines.
    """
    first: Dict[Tuple[str, int], Xid] = {}
    oldest: Optional[int] = None
    last = after
    try:
        for line in _lines(path):
            record = _HEAD.match(line)
            if record is None:  # continues a record, or describes its device
                continue
            sequence = int(record[1])
            oldest = sequence if oldest is None else oldest
            if after is not None and sequence <= after:
                continue
            last = sequence if last is None else max(last, sequence)
            error = _error_in(record[2])
            if error is None:
                continue
            xid = first.get(error)
            if xid is None:
                first[error] = Xid(error[1], error[0], 1, sequence, record[2].strip())
            else:
                first[error] = Xid(xid.code, xid.pci_address, xid.count + 1, xid.sequence, xid.text)
    except OSError as error:
        return XidLog(refusal=_refusal(error))
    refusal = None
    if after is not None and oldest is not None and oldest > after + 1:
        refusal = "its records %d to %d were overwritten" % (after + 1, oldest - 1)
    return XidLog(tuple(first.values()), last, refusal)


def same_device(address: str, other: Optional[str]) -> bool:
    """Whether two PCI addresses are of one device, with or without a function, and with 4 or 8 digits of a domain."""
    return other is not None and _slot(address) == _slot(other)


def _slot(address: str) -> str:
    return address.lower().partition(".")[0][-len("0000:00:00") :]


def _error_in(text: str) -> Optional[Tuple[str, int]]:
    """The address and the number of an Xid line."""
    match = _XID.search(text)
    if match is not None:
        return _slot(match[1]), int(match[2])
    match = _OFF_THE_BUS.search(text)
    if match is not None:
        return _slot(match[1]), _FALLEN
    return None


def _lines(path: str) -> Iterator[str]:
    """The lines of all records that are there. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    rest = b""
    try:
        while True:
            try:
                block = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:  # no further record
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue  # this record was overwritten; the next read gives the oldest that is left
            if not block:
                break
            lines: List[bytes] = (rest + block).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield line.decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    if rest:
        yield rest.decode("utf-8", "replace")


def _refusal(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return NO_PERMISSION
    if error.errno == errno.ENOENT:
        return NOT_FOUND
    return error.strerror or str(error)
