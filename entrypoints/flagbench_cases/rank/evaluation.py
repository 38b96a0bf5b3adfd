"""Validates the result of an evaluation and writes it to the spool."""

from __future__ import annotations

import math
from typing import Any

from flagbench_cases.contract import Evaluation
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.exit_codes import ExitCode


def report(spool: RankSpool, evaluation: Evaluation, seconds: float, **where: Any) -> None:
    """Write an evaluation to the spool; `where` is what it followed: epoch and step, or pass.

    Raises CaseError (12) for a result that is not finite.
    """
    measures = {extra["name"]: extra["value"] for extra in evaluation.extra}
    if evaluation.accuracy is not None:
        measures["accuracy"] = evaluation.accuracy
    for name, value in measures.items():
        if not math.isfinite(value):
            raise CaseError(
                f"the {name} of the evaluation after step {where['steps']} is {value}",
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
        **where,
    )
