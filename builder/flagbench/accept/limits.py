"""Selects the limits of an acceptance for the devices of a machine: the bounds within which a number passes."""

from __future__ import annotations

from collections.abc import Collection

from flagbench.manifests.limits import AcceptanceLimit, override_limits
from flagbench.manifests.model import Catalog


def limits_of(catalog: Catalog, device_names: Collection[str], *, processor: bool) -> tuple[AcceptanceLimit, ...]:
    """The limits of manifests/limits.yaml, as the file of the device model overrides them.

    Args:
        device_names: the names of the devices as the driver reports them. If they are of several models, or of a
            model without a file, nothing is overridden.
        processor: whether the limits are for a processor instead of accelerators.
    """
    models = []
    for model in catalog.devices.values():
        if any(model.has_name(name) for name in device_names):
            models.append(model)
    overrides = {}
    if len(models) == 1 and len(set(device_names)) == 1:
        overrides = dict(models[0].acceptance)
    return tuple(limit for limit in override_limits(catalog.limits, overrides) if limit.processor is processor)
