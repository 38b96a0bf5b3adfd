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


def fitting_devices(text: str, known: Collection[DeviceModel]) -> tuple[str, ...]:
    """Ids of the accelerators that a publisher's name fits, such as both of 40 and 80 GiB for `A100`; often one.

    A name fits if it is the accelerator's own, or if each of its words is a word of it, its memory (`A100-40GB`) or
    its form factor.
    """
    wanted = re.sub(r"[_\s]+", " ", unicodedata.normalize("NFKC", text)).strip()
    exact = [card.id for card in known if wanted.lower() in {name.lower() for name in (card.name, *card.match)}]
    if exact:
        return tuple(exact)
    words = _words(wanted)
    significant = words - _NOISE
    if not any(re.search(r"[a-z]", word) and not _MEMORY.fullmatch(word) for word in significant):
        return ()
    fitting = [card for card in known if all(_fits(word, card) for word in significant)]
    forms = {card.form_factor.lower() for card in known}.intersection(text.lower().split())
    return tuple(card.id for card in fitting if not forms or card.form_factor.lower() in forms)


def _fits(word: str, card: DeviceModel) -> bool:
    own = _words(card.name).union(*map(_words, card.match))
    if word in own or f"mx{word}" in own:
        return True
    match = _MEMORY.fullmatch(word)
    return match is not None and float(match[1]) == card.memory_gib


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))
