"""Devices of manifests/devices, found by what a publisher calls them."""

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
"""Words that distinguish no two accelerators of a vendor, or that a manifest may leave out."""
_MEMORY = re.compile(r"(\d+)\s*g(?:i?b)?")


def fitting_devices(text: str, devices: Collection[DeviceModel]) -> tuple[str, ...]:
    """Ids of the accelerators that a publisher's name fits, such as both of 40 and 80 GiB for `A100`; often one.

    A name fits if it is the accelerator's own, or if each of its words is a word of it, its memory (`A100-40GB`) or
    its form factor.
    """
    wanted = re.sub(r"[_\s]+", " ", unicodedata.normalize("NFKC", text)).strip()
    exact = [device.id for device in devices if wanted.lower() in _lower_names(device)]
    if exact:
        return tuple(exact)
    significant = _words(wanted) - _NOISE
    if not any(_is_model(word) for word in significant):
        return ()
    fitting = [device for device in devices if all(_fits(word, device) for word in significant)]
    forms = {device.form_factor.lower() for device in devices}.intersection(text.lower().split())
    if forms:
        fitting = [device for device in fitting if device.form_factor.lower() in forms]
    return tuple(device.id for device in fitting)


def _lower_names(device: DeviceModel) -> set[str]:
    return {name.lower() for name in (device.name, *device.match)}


def _is_model(word: str) -> bool:
    """Whether a word can name a model: it has a letter, and is not a size of memory."""
    return re.search(r"[a-z]", word) is not None and _MEMORY.fullmatch(word) is None


def _fits(word: str, device: DeviceModel) -> bool:
    words = _words(device.name).union(*map(_words, device.match))
    if word in words or f"mx{word}" in words:
        return True
    memory = _MEMORY.fullmatch(word)
    return memory is not None and float(memory[1]) == device.memory_gib


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))
