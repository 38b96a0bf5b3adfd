"""Digests of a configuration without its seed, or as its earlier runs have it, and of the machine of a record."""

from __future__ import annotations

import copy
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


NOT_OF_HISTORY = ("seed", "measure.seconds", "measure.heat_seconds", "products.mamf_shapes")
"""Paths of a configuration that earlier runs may differ in: the seed, and what an acceptance chooses for its roofs by
its minutes and its device. A measurement says how long the device was heated before, and the shape of a product.
`laps` is not among them: the history of a soak is soaks of as many laps."""


def history_digest(record: Record) -> str | None:
    """The digest of a record's configuration by which its earlier runs are found; that which the record states if it
    has no configuration."""
    if record.config is None:
        return record.config_digest
    config = copy.deepcopy(record.config)
    for path in NOT_OF_HISTORY:
        *sections, name = path.split(".")
        section: Any = config
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(name, None)
    return digest(config)


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
