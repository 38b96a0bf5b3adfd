"""Digests by which runs are grouped: of a configuration without its seed or other settings, and of a machine.

The index of a store has them of each record, so that earlier runs of the same kind are found without opening them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from flagbench.records.model import Record
from flagbench_core.config import digest

_MACHINE_DIGITS = 16
"""Length of a machine's digest: 64 bits, enough to distinguish the machines in a store."""


def unseeded(config: Mapping[str, Any]) -> str:
    """Return the digest of a configuration without its seed, which all runs of a series have in common."""
    return digest({name: value for name, value in config.items() if name != "seed"})


def unseeded_digest(record: Record) -> str | None:
    """Return the digest of a record's configuration without its seed.

    A record that has no configuration has at most its digest, which is returned in place of it.
    """
    if record.config is None:
        return record.config_digest
    return unseeded(record.config)


NOT_OF_HISTORY = ("seed", "measure.seconds", "measure.heat_seconds", "products.mamf_shapes")
"""The settings that earlier runs of a configuration may have other values of, as paths of names.

They are the seed, and what an acceptance chooses for its measurements, depending on its minutes and its device: a
measurement itself has how long the device was heated before, and the shape of a matmul. `laps` is not one of them:
the earlier runs of a soak, which measures in laps, are soaks of as many laps.
"""


def history_digest(record: Record) -> str | None:
    """Return the digest of a record's configuration by which its earlier runs are found.

    A record that has no configuration has at most its digest, which is returned in place of it.
    """
    if record.config is None:
        return record.config_digest
    config = copy.deepcopy(record.config)
    for path in NOT_OF_HISTORY:
        _remove_setting(config, path)
    return digest(config)


def _remove_setting(config: dict[str, Any], path: str) -> None:
    """Remove a setting from a configuration, if it has it."""
    *section_names, name = path.split(".")
    section: Any = config
    for section_name in section_names:
        section = section.get(section_name)
        if not isinstance(section, dict):
            return
    section.pop(name, None)


def machine_digest(record: Record) -> str | None:
    """Return a digest that distinguishes the machine of a record: of its devices, else of its processor.

    It is None if the record names neither. The host name is not used: each container has another.
    """
    facts = sorted(device_uuids(record))
    if not facts:
        cpu = record.system.cpu
        facts = [str(fact) for fact in (cpu.model, cpu.logical) if fact is not None]
    if not facts:
        return None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:_MACHINE_DIGITS]


def device_uuids(record: Record) -> set[str]:
    """Return the uuids that a record has of its devices, or of their slices."""
    uuids = {device.uuid for device in record.system.devices}
    uuids |= {rank.uuid for rank in record.ranks}
    return {uuid for uuid in uuids if uuid}
