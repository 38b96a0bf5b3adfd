"""The limits of an acceptance for the devices of the machine."""

from __future__ import annotations

from collections.abc import Collection

from flagbench.manifests.limits import AcceptanceLimit, override_limits
from flagbench.manifests.model import Catalog


def limits_of(catalog: Catalog, device_names: Collection[str], *, processor: bool) -> tuple[AcceptanceLimit, ...]:
    """The limits of manifests/limits.yaml, as the file of the device model overrides them.

    Args:
        device_names: as the driver reports them. If they are of several models, or of a model without a file, nothing
            is overridden.
    """
    models = [model for model in catalog.devices.values() if any(model.has_name(name) for name in device_names)]
    overrides = {}
    if len(models) == 1 and len(set(device_names)) == 1:
        overrides = dict(models[0].acceptance)
    return tuple(limit for limit in override_limits(catalog.limits, overrides) if limit.processor is processor)
