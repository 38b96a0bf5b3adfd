"""The options of an acceptance, the same for one that runs on this machine and for jobs that accept nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from flagbench import complete
from flagbench.accept.plan import LEAST_LAPS
from flagbench.errors import FlagbenchError
from flagbench.options import Text
from flagbench.price import PRICE

_MIN_MINUTES = 0.5
"""The least of --minutes: starting a run takes up to 20 s."""
_MAX_MINUTES = 24 * 60
"""The most of --minutes and of --soak."""


@dataclass(frozen=True)
class AcceptOptions:
    """The options of an acceptance, as the user typed them. None: the option was not given."""

    minutes: Annotated[
        float,
        Option("--minutes", metavar="MINUTES", help=f"End after this time, at least {_MIN_MINUTES:g} minutes."),
    ] = 10.0
    gpus: Annotated[
        int | None,
        Option(min=1, max=1024, help="Devices that must be present; on cpu, ranks. Default: all; on cpu, 2."),
    ] = None
    case: Annotated[
        Text,
        Option(
            metavar="CASE[:STACK]",
            autocompletion=complete.cases,
            help="The case to run after the roofs. Default: the largest that fits, of those with published rows of "
            "this device if there are any.",
        ),
    ] = None
    price: Annotated[
        float | None, Option(metavar="AMOUNT", help=f"What this machine costs per hour. Default: {PRICE}.")
    ] = None
    soak: Annotated[
        int | None,
        Option(
            "--soak",
            metavar="MINUTES",
            min=LEAST_LAPS,
            max=_MAX_MINUTES,
            help="Then measure the roofs of all devices in laps for this many minutes, in addition to --minutes.",
        ),
    ] = None

    serving: Annotated[
        bool,
        Option("--serving", help="Also generate tokens with vLLM on the first device: 90 s of --minutes."),
    ] = False

    @property
    def total_minutes(self) -> float:
        """The minutes of the acceptance, its soak included."""
        return self.minutes + (self.soak or 0)

    def check_minutes(self) -> None:
        """Raise FlagbenchError (USAGE) for minutes out of range."""
        if not _MIN_MINUTES <= self.minutes <= _MAX_MINUTES:
            raise FlagbenchError(
                f"--minutes {self.minutes:g} is out of range", remedy=f"give {_MIN_MINUTES:g} to {_MAX_MINUTES}"
            )
