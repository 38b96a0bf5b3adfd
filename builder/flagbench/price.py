"""Reads the price of this machine per hour, from an option or the environment, to compute the cost of runs."""

from __future__ import annotations

import os

from flagbench.errors import FlagbenchError

PRICE = "FLAGBENCH_PRICE"
"""The environment variable with the price of this machine per hour, in any currency. `accept --price` precedes."""
MAX_PRICE = 1e9
"""A larger number is a mistake, and costs of it would not fit the columns of tables."""


def price_of(text: str | float | None, name: str) -> float | None:
    """Parse a price per hour. Returns None for no or an empty text; raises FlagbenchError (USAGE) for no valid price.

    `name`: the option or variable that has the price, for the error.
    """
    if text is None or text == "":
        return None
    try:
        price = float(text)
    except ValueError:
        price = 0.0  # not a valid price either
    if not 0 < price < MAX_PRICE:
        raise FlagbenchError(f"{name} {text!r} is not a price", remedy="give a number above 0, such as 1.5, per hour")
    return price


def price_here() -> float | None:
    """The price per hour in the environment. Raises FlagbenchError (USAGE) for anything but a price."""
    return price_of(os.environ.get(PRICE), PRICE)


def check_price() -> None:
    """Raise FlagbenchError (USAGE) if FLAGBENCH_PRICE is not a price.

    Commands that show prices at their end call this first, before a run or half of a report is spent.
    """
    price_here()
