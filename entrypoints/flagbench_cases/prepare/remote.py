"""Prepared folders in a bucket, as a run uses them: looked up at once, fetched into the cache before it starts."""

import argparse
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from flagbench_cases.prepare import cache, child
from flagbench_cases.prepare.bucket import is_address, open_bucket
from flagbench_cases.prepare.job import check_prepares
from flagbench_cases.shared import config
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.files import KINDS
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact

SOURCE_VARIABLES = {"data": "FLAGBENCH_DATA_SOURCE", "weights": "FLAGBENCH_WEIGHTS_SOURCE"}
"""Where a folder that is mounted into a container was fetched from; `flagbench run` sets them, for the record."""

JOINING_SECONDS = 3600.0
"""How long nodes wait for each other if each fetches its data first."""


class NotFetched(CaseError):
    """Prepared data or weights in a bucket are missing or damaged, or the bucket cannot be used."""


class Fetched(NamedTuple):
    """A prepared folder of a bucket, in the cache or not yet."""

    url: str
    folder: str
    complete: bool
    """Whether the cache has it."""


def addresses(data: Optional[str], weights: Optional[str], beside: bool = True) -> Dict[str, Dict[str, Any]]:
    """What to fetch for these values of --data and --weights, by kind: {"url", "optional"}.

    As in a folder, the weights beside the data are used unless others are given, so they are looked for, unless
    `beside` is False.
    """
    found: Dict[str, Dict[str, Any]] = {}
    if is_address(data):
        found["data"] = {"url": data, "optional": False}
        if weights is None and beside:
            found["weights"] = {"url": data, "optional": True}
    if is_address(weights):
        found["weights"] = {"url": weights, "optional": False}
    return found


def fetch(
    case: str, sources: Mapping[str, Mapping[str, Any]], interruption: Interruption, survey: bool = False
) -> Dict[str, Fetched]:
    """Fetch folders of a bucket into the cache, by kind; an optional one that is not there is left out.

    Args:
        sources: see `addresses`.
        survey: look the folders up, and fetch nothing.

    Raises:
        NotFetched: usage (2), data (3), interrupted (7) or network (15). What was fetched is kept for the next time.
        UsageError: for an address that cannot be used, and an unknown case.
    """
    if not sources:
        return {}
    config.load_case(case)
    for kind, source in sources.items():
        try:  # before the address is written anywhere: it may hold credentials
            open_bucket(source["url"])
            check_prepares(case)
        except CaseError as error:
            raise UsageError("--%s: %s" % (kind, error.message), error.remedy) from None
    # A user without a home has one for the time of the child, where a cache would be lost.
    place = {cache.VARIABLE: cache.root()}
    plan = {"do": "fetch", "case": case, "sources": sources, "survey": survey}
    try:
        results = child.run(plan, interruption, "fetching the data", place)
    except CaseError as error:
        raise NotFetched(redact(error.message), error.remedy, error.code) from None
    return {kind: Fetched(**facts) for kind, facts in results.items()}


class Remote:
    """The data and weights of a run that are in a bucket; none of them may be."""

    def __init__(self, case: str, sources: Mapping[str, Mapping[str, Any]], found: Mapping[str, Fetched]) -> None:
        self._case = case
        self._sources = sources
        self._found = found

    @property
    def joining(self) -> float:
        """How long the other nodes may take to fetch theirs, seconds."""
        return JOINING_SECONDS if self._found else 0.0

    def fetch(self, interruption: Interruption) -> None:
        """Fetch what the cache does not have. Raises NotFetched."""
        if not all(each.complete for each in self._found.values()):
            fetch(self._case, self._sources, interruption)

    def urls(self) -> Dict[str, str]:
        """Where data and weights are from, by kind, without credentials: as looked up, else as the launcher says."""
        told = {kind: os.environ.get(name) for kind, name in SOURCE_VARIABLES.items()}
        urls = {kind: self._found[kind].url if kind in self._found else told[kind] for kind in KINDS}
        return {kind: redact(url) for kind, url in urls.items() if url}


NONE = Remote("", {}, {})


def look_up(arguments: argparse.Namespace, interruption: Interruption) -> Remote:
    """Look up the addresses in --data and --weights, and put the folders of the cache in their place.

    Nothing is fetched yet. Raises NotFetched, and UsageError for an unknown case.
    """
    sources = addresses(arguments.data, arguments.weights)
    found = fetch(arguments.case, sources, interruption, survey=True)
    for kind, each in found.items():
        setattr(arguments, kind, each.folder)
    return Remote(arguments.case, sources, found)
