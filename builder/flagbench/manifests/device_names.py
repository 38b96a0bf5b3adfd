"""Finds the device models of manifests/devices that a publisher's name for a device can mean.

Publishers write `A100`, `DGX H100` or `A100-SXM4-40GB`. Published rows get the ids of the models from here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import cache

from flagbench.manifests.device import DeviceModel

_NOISE = frozenset(
    (
        *("dgx", "hgx", "nvidia", "metax", "tesla", "gpu", "card", "tensor", "core", "accelerator"),
        *("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
"""Words that do not distinguish a vendor's accelerators from each other, or that a manifest may leave out."""
_MEMORY = re.compile(r"(\d+)\s*g(?:i?b)?")
"""A size of memory in lower case, such as `40gb`; the group is the number."""


def fitting_devices(text: str, devices: Collection[DeviceModel]) -> tuple[str, ...]:
    """Find the ids of the devices that a publisher's name fits: often one, and for `A100` those of 40 and of 80 GiB.

    A name fits a device if it is a name of the device. Without such a device, it fits one if each of its words is a
    word of the device's names, the size of its memory (`A100-40GB`) or its form factor.
    """
    wanted = re.sub(r"[_\s]+", " ", unicodedata.normalize("NFKC", text)).strip()
    exact = [device.id for device in devices if wanted.lower() in _lower_names(device)]
    if exact:
        return tuple(exact)
    significant = _words(wanted) - _NOISE
    if not any(_is_model(word) for word in significant):
        return ()
    fitting = [device for device in devices if all(_fits(word, device) for word in significant)]
    form_factors = {device.form_factor.lower() for device in devices}
    named_form_factors = form_factors.intersection(text.lower().split())
    if named_form_factors:
        fitting = [device for device in fitting if device.form_factor.lower() in named_form_factors]
    return tuple(device.id for device in fitting)


def _lower_names(device: DeviceModel) -> set[str]:
    """All names of a device in lower case."""
    return {name.lower() for name in (device.name, *device.match)}


def _is_model(word: str) -> bool:
    """Whether a word can be the name of a model: it has a letter, and is not a size of memory."""
    return re.search(r"[a-z]", word) is not None and _MEMORY.fullmatch(word) is None


def _fits(word: str, device: DeviceModel) -> bool:
    """Whether a word, in lower case, is a part of a device's names, or the size of its memory in GiB."""
    words = set(_words(device.name))
    for name in device.match:
        words |= _words(name)
    if word in words:
        return True
    if f"mx{word}" in words:  # MetaX's C500 is `MXC500` in its driver.
        return True
    memory = _MEMORY.fullmatch(word)
    return memory is not None and float(memory[1]) == device.memory_gib


@cache
def _words(text: str) -> frozenset[str]:
    """The words of a text in lower case: its groups of letters and digits."""
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))
