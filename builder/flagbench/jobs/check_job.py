"""The Job itself: one attempt, as many pods as nodes, an end in any case, and rules that the API server takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.options import CONTROLLER_LABELS, QUEUE_LABEL
from flagbench.jobs.problems import Document, Problem, as_list, as_mapping, is_count, shown

_POLICY = ("spec", "podFailurePolicy")


def check_job(job: Document) -> Iterator[Problem]:
    """What is wrong with the fields of a Job beside its pods'."""
    yield from _check_counts(job)
    yield from _check_attempts(job)
    yield from _check_end(job)
    yield from _check_policy(job)
    yield from _check_queue(job)
    labels = ("spec", "template", "metadata", "labels")
    for label in CONTROLLER_LABELS:
        if label in job.mapping(*labels):
            yield job.problem((*labels, label), "the Job controller sets this label", "leave it out")


def _check_counts(job: Document) -> Iterator[Problem]:
    completions, parallelism = job.at("spec", "completions"), job.at("spec", "parallelism")
    if job.at("spec", "completionMode") != "Indexed":
        yield job.problem(
            ("spec", "completionMode"), "the pods would not be told which node they are", "write Indexed"
        )
    if not is_count(completions, 1):
        yield job.problem(("spec", "completions"), f"is {shown(completions)}", "write the number of nodes")
    elif completions != parallelism:
        yield job.problem(
            ("spec", "parallelism"),
            f"is {shown(parallelism)} and completions {completions}: the nodes of a run wait for each other",
            "write the number of nodes in both",
        )
    elif parallelism > syntax.MOST_NODES:
        yield job.problem(
            ("spec", "parallelism"),
            f"is {parallelism}",
            f"an Indexed Job runs at most {syntax.MOST_NODES} pods at a time",
        )
    last = f"{job.name}-{completions - 1 if is_count(completions, 1) else 0}"
    if len(last) > syntax.LABEL_LENGTH:
        yield job.problem(
            ("metadata", "name"),
            f"the last pod's host name would be {last}, of {len(last)} characters",
            f"shorten the name: {syntax.LABEL_LENGTH} are allowed",
        )


def _check_attempts(job: Document) -> Iterator[Problem]:
    restart = job.at("spec", "template", "spec", "restartPolicy")
    if restart != "Never":
        yield job.problem(
            ("spec", "template", "spec", "restartPolicy"),
            f"is {shown(restart)}: a run that failed would be repeated, and its record lost",
            "write Never",
        )
    if not is_count(job.at("spec", "backoffLimit")) or job.at("spec", "backoffLimit") != 0:
        yield job.problem(
            ("spec", "backoffLimit"),
            f"is {shown(job.at('spec', 'backoffLimit'))}: a node that is started again cannot join the run",
            "write 0",
        )
    if job.at("spec", "manualSelector"):
        yield job.problem(("spec", "manualSelector"), "other jobs' pods may be taken for this one's", "leave it out")


def _check_end(job: Document) -> Iterator[Problem]:
    if not is_count(job.at("spec", "activeDeadlineSeconds"), 1):
        yield job.problem(
            ("spec", "activeDeadlineSeconds"), "nothing ends a job that hangs", "write a number of seconds"
        )
    kept = job.at("spec", "ttlSecondsAfterFinished")
    if not is_count(kept, 60):
        yield job.problem(
            ("spec", "ttlSecondsAfterFinished"),
            f"is {shown(kept)}: the ended job stays for ever, or its log is lost",
            "write a number of seconds from 60 on, enough to collect the log",
        )


def _check_policy(job: Document) -> Iterator[Problem]:
    if job.at(*_POLICY) is None:
        return
    if job.at("spec", "template", "spec", "restartPolicy") != "Never":
        yield job.problem(_POLICY, "is refused with another restartPolicy than Never", "write restartPolicy: Never")
    if job.at("spec", "podReplacementPolicy") == "TerminatingOrFailed":
        yield job.problem(
            ("spec", "podReplacementPolicy"), "with a podFailurePolicy only Failed is taken", "write Failed"
        )
    names = [as_mapping(c).get("name") for c in as_list(job.at("spec", "template", "spec", "containers"))]
    for index, rule in enumerate(as_list(job.at(*_POLICY, "rules"))):
        yield from _check_rule(job, (*_POLICY, "rules", index), as_mapping(rule), names)


def _check_rule(job: Document, path: tuple[str | int, ...], rule: Any, names: list[Any]) -> Iterator[Problem]:
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
    if bool(codes) == bool(conditions):
        yield job.problem(path, "a rule needs onExitCodes or onPodConditions, and not both", "write one of them")
    if rule.get("action") == "FailIndex" and job.at("spec", "backoffLimitPerIndex") is None:
        yield job.problem((*path, "action"), "FailIndex needs backoffLimitPerIndex", "write FailJob")
    if codes:
        yield from _check_codes(job, (*path, "onExitCodes"), as_mapping(codes), names)
    for index, condition in enumerate(as_list(conditions)):
        if "status" not in as_mapping(condition):
            yield job.problem(
                (*path, "onPodConditions", index, "status"),
                "is missing, which Kubernetes up to 1.34 does not take",
                'write status: "True"',
            )


def _check_codes(job: Document, path: tuple[str | int, ...], codes: Any, names: list[Any]) -> Iterator[Problem]:
    values = as_list(codes.get("values"))
    if not values or any(not is_count(value) for value in values):
        yield job.problem((*path, "values"), "has to be a list of exit codes", "write numbers from 1 to 255")
    elif values != sorted(set(values)):
        yield job.problem((*path, "values"), "exit codes have to be in order, each once", "sort them")
    elif 0 in values and codes.get("operator") == "In":
        yield job.problem((*path, "values"), "0 is no failure", "leave it out")
    name = codes.get("containerName")
    if name is not None and name not in names:
        yield job.problem((*path, "containerName"), f"there is no container {shown(name)}", "name one of the pod's")


def _check_queue(job: Document) -> Iterator[Problem]:
    queued = QUEUE_LABEL in job.mapping("metadata", "labels")
    if job.at("spec", "suspend") is True and not queued:
        yield job.problem(
            ("spec", "suspend"), "nothing will ever start this job", f"leave it out, or give the label {QUEUE_LABEL}"
        )
    if queued and job.at("spec", "suspend") is not True:
        yield job.problem(
            ("spec", "suspend"), "a job for a queue begins suspended; Kueue starts it", "write suspend: true"
        )
