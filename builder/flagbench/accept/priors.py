"""Converts spreads between runs to those of a certificate, and back to the terms of a comparison.

A prior is a spread that is known beforehand, from the store or by default. It gives a single run an interval.
"""

from __future__ import annotations

from collections.abc import Mapping

from flagbench.accept.document import Spread, SpreadOfRuns
from flagbench.verdict.interval import Terms
from flagbench.verdict.stats.between import Prior, SessionSpread

_MOST_DF = 1e9
"""The degrees of freedom that are written for infinitely many, which JSON cannot express; the bound of
`document.PositiveFloat`."""


def spread_of(prior: Prior) -> SpreadOfRuns:
    """A spread between runs as a certificate states it."""
    session = None
    if prior.session is not None:
        session = Spread(prior.session.spread, min(prior.session.df, _MOST_DF), prior.session.source)
    return SpreadOfRuns(prior.spread, min(prior.df, _MOST_DF), prior.source, session)


def terms_of(priors: Mapping[str, SpreadOfRuns]) -> Terms:
    """The terms of a comparison with the spreads that a certificate states, by metric."""
    prior_by_metric = {}
    for name, prior in priors.items():
        session = None
        if prior.session is not None:
            session = SessionSpread(prior.session.spread, prior.session.df, prior.session.source)
        prior_by_metric[name] = Prior(prior.spread, prior.df, prior.source, session)
    return Terms(priors=prior_by_metric)
