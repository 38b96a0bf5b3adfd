"""Digests by which runs are grouped: of a configuration without its seed or other settings, and of a machine.

The index of a store has them of each record, so that earlier runs of the same kind are found without opening them.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from flagbench.records.model import Record
from flagbench_core.config import digest

SETTINGS_THAT_VARY = ("seed", "measure.seconds", "measure.heat_seconds", "products.mamf_shapes")
"""The settings in which earlier runs of a configuration may differ from a run, as paths of names.

They are the seed, and what an acceptance (`flagbench accept`) chooses for its roofs according to its minutes and its
device: how long to measure, how long to heat the devices before, and the shapes of matmuls. The last two are stated
by each measurement itself. `laps` is not listed: a soak, which measures in laps, is compared with soaks of as many
laps.
"""
_MACHINE_DIGITS = 16
"""Length of a machine's digest: 64 bits, enough to distinguish the machines in a store."""

_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
"""The host name of a container to which none was given. Each container has another."""


def unseeded_config_digest(config: Mapping[str, Any]) -> str:
    """Return the digest of a configuration without its seed, which all runs of a series have in common."""
    return digest({name: value for name, value in config.items() if name != "seed"})


def unseeded_record_digest(record: Record) -> str | None:
    """Return the digest of a record's configuration without its seed.

    A record without a configuration has at most the digest of all of it, `config_digest`, which is returned instead:
    it groups runs with the same seed.
    """
    if record.config is None:
        return record.config_digest
    return unseeded_config_digest(record.config)


def history_digest(record: Record) -> str | None:
    """Return the digest of a record's configuration by which its earlier runs are found.

    For a record without a configuration, it is the digest of the whole, as in `unseeded_record_digest`.
    """
    if record.config is None:
        return record.config_digest
    config = copy.deepcopy(record.config)
    for path in SETTINGS_THAT_VARY:
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
    """Return a digest that distinguishes the machine of a record: of its devices, else of its processor and host.

    It is None if the record names neither devices nor a processor.
    """
    facts = sorted(device_uuids(record))
    if not facts:
        cpu = record.system.cpu
        facts = [str(fact) for fact in (cpu.model, cpu.logical) if fact is not None]
        host = machine_host(record)
        if facts and host is not None:
            facts.append(host)
    if not facts:
        return None
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:_MACHINE_DIGITS]


def machine_host(record: Record) -> str | None:
    """Return the host name of a record; None if it has none, or one that Docker made up for a container."""
    host = record.system.host
    if not host or _CONTAINER_ID.fullmatch(host):
        return None
    return host


def device_uuids(record: Record) -> set[str]:
    """Return the uuids that a record has of its devices, or of their slices."""
    uuids = {device.uuid for device in record.system.devices}
    uuids |= {rank.uuid for rank in record.ranks}
    return {uuid for uuid in uuids if uuid}
