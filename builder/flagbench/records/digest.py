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
    """The digest of a record's configuration without its seed; without a configuration, the one that it states."""
    if record.config is None:
        return record.config_digest
    return unseeded(record.config)


NOT_OF_HISTORY = ("seed", "measure.seconds", "measure.heat_seconds", "products.mamf_shapes")
"""Paths of a configuration that earlier runs may differ in: the seed, and what an acceptance chooses for its roofs by
its minutes and its device. A measurement says how long the device was heated before, and the shape of a product.
`laps` is not among them: the history of a soak is soaks of as many laps."""


def history_digest(record: Record) -> str | None:
    """The digest of a record's configuration by which its earlier runs are found; without a configuration, the one
    that the record states."""
    if record.config is None:
        return record.config_digest
    config = copy.deepcopy(record.config)
    for path in NOT_OF_HISTORY:
        *sections, name = path.split(".")
        section: Any = config
        for key in sections:
            if isinstance(section, dict):
                section = section.get(key)
        if isinstance(section, dict):
            section.pop(name, None)
    return digest(config)


def machine_digest(record: Record) -> str | None:
    """A digest by which the machine of a record is told from others: of its devices, else of its processor.

    None if the record names neither. The host name is not used: each container has its own.
    """
    cpu = record.system.cpu
    facts = sorted(device_uuids(record))
    if not facts:
        facts = [str(fact) for fact in (cpu.model, cpu.logical) if fact is not None]
    if not facts:
        return None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def device_uuids(record: Record) -> set[str]:
    """The uuids of the devices of a record, or of their slices, that it names."""
    uuids = [*(device.uuid for device in record.system.devices), *(rank.uuid for rank in record.ranks)]
    return {uuid for uuid in uuids if uuid}
