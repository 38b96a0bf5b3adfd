"""Reads the errors of NVIDIA's driver (Xid) from the kernel log, those after a given sequence number only.

A caller remembers the last sequence number before a run, so that earlier errors are not counted as the run's.
/dev/kmsg returns one record per read, such as `4,1234,98765432,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, ...`:
priority, sequence number, microseconds and flags, and the text (Linux, Documentation/ABI/testing/dev-kmsg). Reading
it takes root, or CAP_SYSLOG where dmesg is restricted. Containers rarely may.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from flagbench_core.health.reading import NO_PERMISSION, NOT_FOUND

KMSG = "/dev/kmsg"
_RECORD_BYTES = 8192
"""More than the kernel's longest record: PRINTK_MESSAGE_MAX is 2048, to which escapes and a dictionary are added."""
_HEAD = re.compile(r"\d+,(\d+),\d+,[^;]*;(.*)")
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?%s\): (\d+)\b" % _ADDRESS)
_OFF_THE_BUS = re.compile(r"NVRM: GPU %s: GPU has fallen off the bus" % _ADDRESS)
_FALLEN = 79
"""The Xid of a device that has fallen off the bus. The line that _OFF_THE_BUS matches does not state it."""


@dataclass(frozen=True)
class Xid:
    """All lines of the log with the same Xid for the same device."""

    code: int
    """The Xid, a number in NVIDIA's catalogue of errors."""
    pci_address: str
    """The address of the device without its function: 0000:9b:00."""
    count: int
    """How many lines there are."""
    sequence: int
    """The sequence number of the first line."""
    text: str
    """The text of the first line."""


@dataclass(frozen=True)
class XidLog:
    """The Xid lines of a kernel log after a sequence number."""

    xids: Tuple[Xid, ...] = ()
    last: Optional[int] = None
    """The sequence number of the last record of any kind; records with a higher one are new to the next reading."""
    refusal: Optional[str] = None
    """Why the log, or a part of it, cannot be read; None if all of it was read."""

    def to_dict(self) -> Dict[str, Any]:
        """The log for JSON; `last` and `refusal` are absent if they are None."""
        values: Dict[str, Any] = {"xids": [vars(xid) for xid in self.xids]}
        if self.last is not None:
            values["last"] = self.last
        if self.refusal is not None:
            values["refusal"] = self.refusal
        return values


def read_xids(after: Optional[int] = None, path: str = KMSG) -> XidLog:
    """The Xid lines after the record with the sequence number `after` (None: all lines that the kernel still has).

    Does not wait for new lines and never raises. `path`: in tests, a file with the same lines.
    """
    try:
        records = list(_read_records(path))
    except OSError as error:
        return XidLog(refusal=_describe_refusal(error))
    refusal = None
    if after is not None and records and records[0].sequence > after + 1:
        refusal = "its records %d to %d were overwritten" % (after + 1, records[0].sequence - 1)
    last = after
    xids: Dict[Tuple[int, str], Xid] = {}
    for record in records:
        if after is not None and record.sequence <= after:
            continue
        if last is None or record.sequence > last:
            last = record.sequence
        found = _find_xid(record)
        if found is None:
            continue
        key = (found.code, found.pci_address)
        if key in xids:
            xids[key] = replace(xids[key], count=xids[key].count + 1)
        else:
            xids[key] = found
    return XidLog(tuple(xids.values()), last, refusal)


def same_device(address: str, other_address: Optional[str]) -> bool:
    """Whether two PCI addresses belong to the same device.

    They may be written with or without a function, and with 4 or 8 digits of a domain.
    """
    return other_address is not None and _slot(address) == _slot(other_address)


def _slot(address: str) -> str:
    """A PCI address without its function and with 4 digits of a domain: 0000:9b:00."""
    without_function = address.lower().partition(".")[0]
    return without_function[-len("0000:00:00") :]


class _Record(NamedTuple):
    """One record of the kernel log."""

    sequence: int
    text: str


def _find_xid(record: _Record) -> Optional[Xid]:
    """The Xid that a record reports; None if it reports none."""
    text = record.text.strip()
    match = _XID.search(text)
    if match is not None:
        return Xid(int(match[2]), _slot(match[1]), 1, record.sequence, text)
    match = _OFF_THE_BUS.search(text)
    if match is not None:
        return Xid(_FALLEN, _slot(match[1]), 1, record.sequence, text)
    return None


def _read_records(path: str) -> Iterator[_Record]:
    """All records of the log, oldest first. Raises OSError."""
    for line in _read_lines(path):
        match = _HEAD.match(line)
        if match is not None:  # other lines continue a record, or describe its device
            yield _Record(int(match[1]), match[2])


def _read_lines(path: str) -> Iterator[str]:
    """The lines of all records that the kernel has now. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    incomplete = b""
    try:
        while True:
            try:
                block = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:  # no further record
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue  # this record was overwritten; the next read returns the oldest that is left
            if not block:
                break
            lines: List[bytes] = (incomplete + block).split(b"\n")
            incomplete = lines.pop()
            for line in lines:
                yield line.decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    if incomplete:
        yield incomplete.decode("utf-8", "replace")


def _describe_refusal(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return NO_PERMISSION
    if error.errno == errno.ENOENT:
        return NOT_FOUND
    return error.strerror or str(error)
