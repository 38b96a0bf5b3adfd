"""What a pod gets to see, for running the same containers without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.jobs import pod_arguments, pod_environment, pod_image, pod_names

JobOf = Callable[..., list[dict[str, Any]]]


def test_names_environment_and_arguments(job_of: JobOf) -> None:
    documents = job_of(nodes=2, gpus=2, name="fb", image="x:1", env=("A=1",), arguments={"preset": "tiny"})
    assert pod_names(documents) == ["fb-0.flagbench", "fb-1.flagbench"]
    assert pod_environment(documents, 1) == {
        "FLAGBENCH_MASTER": "fb-0.flagbench:29400",
        "FLAGBENCH_TERMINATION_LOG": "/dev/termination-log",
        "A": "1",
        "JOB_COMPLETION_INDEX": "1",
    }
    assert pod_arguments(documents) == [
        "--nodes=2",
        "--gpus=2",
        "--run-id=run-1",
        "--preset=tiny",
        "--max-minutes=210",
    ]
    assert pod_image(documents) == "x:1"


def test_dollars_arrive_as_they_were_given(job_of: JobOf) -> None:
    documents = job_of(env=("A=$(FLAGBENCH_MASTER) $$ $", "B=$(A)"))
    environment = pod_environment(documents, 0)
    assert (environment["A"], environment["B"]) == ("$(FLAGBENCH_MASTER) $$ $", "$(A)")


def test_references_a_person_wrote_are_followed(job_of: JobOf) -> None:
    documents = job_of()
    container = documents[1]["spec"]["template"]["spec"]["containers"][0]
    container["env"] += [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(JOB_COMPLETION_INDEX)"}]
    container["args"] += ["--seed=$(A)"]
    assert pod_environment(documents, 0)["B"] == "1$(JOB_COMPLETION_INDEX)"
    assert pod_arguments(documents)[-1] == "--seed=1"


def test_documents_without_a_job(job_of: JobOf) -> None:
    with pytest.raises(FlagbenchError, match="there is no Job"):
        pod_names(job_of()[:1])
