"""The digest of a configuration without its seed, and of the machine that a record is of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flagbench.records.model import Record
from flagbench_core.config import digest


def unseeded(config: Mapping[str, Any]) -> str:
    """The digest of a configuration without its seed: what the runs of a series have in common."""
    return digest({name: value for name, value in config.items() if name != "seed"})


def unseeded_digest(record: Record) -> str | None:
    """The same of a record's configuration; that which the record states if it has none."""
    return record.config_digest if record.config is None else unseeded(record.config)


def machine_digest(record: Record) -> str | None:
    """What tells the machine of a record from others: its devices, or what is known of its processor.

    None if nothing is known. A container's host name does not: each has its own.
    """
    cpu = record.system.cpu
    known = sorted(device_uuids(record)) or [str(fact) for fact in (cpu.model, cpu.logical) if fact is not None]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16] if known else None


def device_uuids(record: Record) -> set[str]:
    """The devices of a record, or their slices, as far as it names them."""
    uuids = [*(device.uuid for device in record.system.devices), *(rank.uuid for rank in record.ranks)]
    return {uuid for uuid in uuids if uuid}
