"""The price of this machine per hour, from an option or the environment."""

from __future__ import annotations

import os

from flagbench.errors import FlagbenchError

PRICE = "FLAGBENCH_PRICE"
"""Price of a machine per hour, in any currency; `accept --price` takes precedence."""


def price_of(text: str | float | None, name: str) -> float | None:
    """A price per hour; None for empty text. Raises FlagbenchError (usage) for anything but a number above 0."""
    if text is None or text == "":
        return None
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not 0 < price < 1e9:
        raise FlagbenchError(f"{name} {text!r} is not a price", remedy="give a number above 0, such as 1.5, per hour")
    return price


def price_here() -> float | None:
    """The price per hour in the environment. Raises FlagbenchError (usage) for anything but a price."""
    return price_of(os.environ.get(PRICE), PRICE)


def check_price() -> None:
    """Raise FlagbenchError (usage) if FLAGBENCH_PRICE is not a price.

    Commands that show prices at their end call this first, before a run or half of a report is spent.
    """
    price_here()
