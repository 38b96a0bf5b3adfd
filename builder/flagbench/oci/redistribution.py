"""Whether the layers of a base may be given to others, by the licence of the base."""

from __future__ import annotations

from flagbench.catalog.model import Stack
from flagbench.errors import FlagbenchError
from flagbench.images import find_reference
from flagbench.oci.base_layers import BaseImage
from flagbench.oci.model import Place

CONSENT = "--i-may-redistribute"


def require_redistributable(stack: Stack, base: BaseImage, place: Place, *, consent: bool) -> None:
    """Refuse to send a base's layers to a place, unless its licence allows it or the user says so.

    Called before the first byte of a base is sent, and before anything becomes readable for everyone. A layer that a
    place has, or copies from the very registry that the base comes from, is not sent.

    Args:
        consent: whether --i-may-redistribute was given.

    Raises FlagbenchError (usage).
    """
    terms = stack.base_redistribution
    own = find_reference(stack.base_image or "")
    is_the_stacks = own is not None and base.name == own.tagged
    if consent or (is_the_stacks and terms.status == "allowed"):
        return
    if not is_the_stacks and stack.base_image is not None:
        reason = f"it is not the stack's base {stack.base_image}, so its licence is unknown"
    else:
        source = f" ({terms.source})" if terms.source else ""
        reason = f"{terms.reason}{source}"
    origin = f"{base.name}@{base.digest}" if base.digest else base.name
    instead = (
        f"let others pull {origin} and build on it, or push to the registry that has it, where nothing is sent"
        if base.digest
        else "let others get the base from its vendor and build on it"
    )
    refused = f"not made public in {place.url}" if place.public else f"not sent to {place.url}"
    private = "" if place.public else f", or where only you can read {place.url}"
    raise FlagbenchError(
        f"the layers of the base {base.name or 'of this image'} are {refused}: {reason}",
        remedy=f"{instead}; with the right to redistribute it{private}, add {CONSENT}",
    )
