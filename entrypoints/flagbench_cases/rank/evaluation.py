"""Validates the result of an evaluation and writes it to the spool. The training and inference loops use it."""

from __future__ import annotations

import math
from typing import Any

from flagbench_cases.contract import Evaluation
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.exit_codes import ExitCode


def write_evaluation(spool: RankSpool, evaluation: Evaluation, seconds: float, **position: Any) -> None:
    """Write an evaluation that took `seconds` to the spool.

    `position` says when it was made: the number of `steps` done, the `epoch`, and in inference the `pass`. Raises
    CaseError (INVALID) for a result that is not finite.
    """
    measures = {extra["name"]: extra["value"] for extra in evaluation.extra}
    if evaluation.accuracy is not None:
        measures["accuracy"] = evaluation.accuracy
    for name, value in measures.items():
        if not math.isfinite(value):
            raise CaseError(
                f"the {name} of the evaluation after step {position['steps']} is {value}",
                "see the preceding losses in the record; a smaller --set learning_rate may help",
                ExitCode.INVALID,
            )
    spool.fact(
        "evaluation",
        accuracy=evaluation.accuracy,
        published_accuracy=evaluation.published_accuracy,
        counted=evaluation.counted,
        extra=list(evaluation.extra),
        seconds=seconds,
        **position,
    )
