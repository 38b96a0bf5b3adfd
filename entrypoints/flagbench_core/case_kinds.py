"""The kinds of cases: training, inference, and measurements without a model."""

from __future__ import annotations

from typing import Any, Mapping

TRAIN = "train"
INFER = "infer"
MEASURE = "measure"
KINDS = (TRAIN, INFER, MEASURE)
"""All kinds.

The steps of training and inference are in a phase of that name. A case that measures roofs (the rates that a device
reaches at most) has a phase for each measurement.
"""


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of case that a configuration is for.

    A configuration has a section with the name of its kind, which says how long a run is.
    """
    for kind in KINDS:
        if kind in config:
            return kind
    return TRAIN
