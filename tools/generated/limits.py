"""The tables of the limits of an acceptance, in docs/accept.md, and of those between nodes, in docs/fleet.md."""

from __future__ import annotations

from collections.abc import Iterator

from flagbench.manifests.limits import AcceptanceLimit, SoundDevices, override_limits
from flagbench.manifests.model import Catalog

_NEVER = "never"


def acceptance_limits(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each limit of manifests/limits.yaml, then one for each that a device's file overrides."""
    for limit in catalog.limits.values():
        yield _row(f"`{limit.id}`", limit)
    for device in catalog.devices.values():
        for limit in override_limits(catalog.limits, device.acceptance):
            if limit.id in device.acceptance:
                yield _row(f"`{limit.id}` of `{device.id}`", limit)


def fleet_limits(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """A row for each limit between nodes of manifests/limits.yaml."""
    for limit in catalog.fleet_limits.limits:
        number = str(limit.kind)
        if limit.processor:
            number = f"{number}, on a processor"
        yield (
            number,
            f"{1 - limit.look_below:.0%}",
            f"{1 - limit.drain_below:.0%}",
            f"{limit.least_spread:.1%}",
            limit.source,
        )


def _row(name: str, limit: AcceptanceLimit) -> tuple[str, ...]:
    number = str(limit.kind)
    if limit.processor:
        number = f"{number}, on a processor"
    if limit.devices is not None:
        number = f"{number}, {limit.devices} devices"
    against = str(limit.against)
    if limit.value is not None:
        against = f"{against}, {limit.value / 1e9:,.0f} GB/s"
    if limit.min_sessions > 1:
        against = f"{against}, {limit.min_sessions} sessions or more"
    fails = _NEVER if limit.fail_below is None else f"{limit.fail_below:.0%}"
    return (
        name,
        number,
        against,
        f"{limit.inconclusive_below:.0%}",
        fails,
        _describe_devices(limit.seen),
        limit.source,
    )


def _describe_devices(sound: SoundDevices | None) -> str:
    if sound is None:
        return "none"
    if sound.lowest == sound.highest:
        return f"{sound.devices} at {sound.lowest:.0%}"
    return f"{sound.devices}, {sound.lowest:.1%} to {sound.highest:.1%}"
