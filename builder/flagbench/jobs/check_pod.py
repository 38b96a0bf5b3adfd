"""The pods of a job: few rights, no secrets, the devices they are told of, and arguments that fit the Job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.options import (
    DIGEST_VARIABLE,
    MASTER_VARIABLE,
    NO_RESOURCE,
    RESOURCE_ANNOTATION,
    TERMINATION_VARIABLE,
)
from flagbench.jobs.problems import Document, Problem, as_list, as_mapping, is_count, shown
from flagbench.jobs.template import CONTAINER
from flagbench.redaction import is_secret
from flagbench.schema import FieldPath

_POD = ("spec", "template", "spec")


def check_pod(job: Document) -> Iterator[Problem]:
    """What is wrong with the template of a job's pods."""
    yield from _check_isolation(job)
    names: list[str] = []
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(as_list(job.at(*_POD, kind))):
            path, data = (*_POD, kind, index), as_mapping(container)
            names.append(str(data.get("name")))
            yield from _check_image(job, path, data)
            yield from _check_rights(job, path, data)
            yield from _check_variables(job, path, data)
            if kind == "containers":
                yield from _check_resources(job, path, as_mapping(data.get("resources")))
                if names[-1] == CONTAINER:
                    yield from _check_arguments(job, path, data)
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield job.problem((*_POD, "containers"), f"two containers are called {name}", "rename one")
    if CONTAINER not in names:
        yield job.problem(
            (*_POD, "containers"), f"there is no container called {CONTAINER}", "make the job with `flagbench job`"
        )


def _check_isolation(job: Document) -> Iterator[Problem]:
    for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if job.at(*_POD, field):
            yield job.problem((*_POD, field), "the run would share it with what else is on the node", "leave it out")
    for field, why in (
        ("automountServiceAccountToken", "a run needs no token of the cluster"),
        ("enableServiceLinks", "variables of the namespace's other services would reach the run"),
    ):
        if job.at(*_POD, field) is not False:
            yield job.problem((*_POD, field), why, "write false")
    grace = job.at(*_POD, "terminationGracePeriodSeconds")
    if grace is not None and not is_count(grace):
        yield job.problem((*_POD, "terminationGracePeriodSeconds"), f"is {shown(grace)}", "write 30")


def _check_image(job: Document, path: FieldPath, container: Mapping[str, Any]) -> Iterator[Problem]:
    image = container.get("image")
    fault = syntax.image_fault(image) if isinstance(image, str) else "is missing"
    if fault:
        yield job.problem((*path, "image"), f"{shown(image)} {fault}", "name it by a fixed tag or by a digest")


def _check_rights(job: Document, path: FieldPath, container: Mapping[str, Any]) -> Iterator[Problem]:
    security = (*path, "securityContext")
    own, pod = as_mapping(container.get("securityContext")), job.mapping(*_POD, "securityContext")
    effective = {**pod, **own}
    if own.get("privileged"):
        yield job.problem((*security, "privileged"), "no run needs it", "leave it out")
    if own.get("allowPrivilegeEscalation") is not False:
        yield job.problem((*security, "allowPrivilegeEscalation"), "no run needs it", "write false")
    if own.get("procMount") not in (None, "Default"):
        yield job.problem((*security, "procMount"), "opens parts of /proc that are closed otherwise", "leave it out")
    capabilities = as_mapping(own.get("capabilities"))
    if "ALL" not in as_list(capabilities.get("drop")):
        yield job.problem((*security, "capabilities", "drop"), "capabilities are kept", "write drop: [ALL]")
    for name in as_list(capabilities.get("add")):
        if name != "IPC_LOCK":
            yield job.problem((*security, "capabilities", "add"), f"{shown(name)} is not needed", "leave it out")
    if effective.get("runAsNonRoot") is True and is_count(effective.get("runAsUser")) and not effective["runAsUser"]:
        yield job.problem(
            (*security, "runAsUser"), "0 is root, and runAsNonRoot is true: no node starts it", "change one of them"
        )
    # Root is taken where it is meant: said twice, as for RDMA.
    root = effective.get("runAsUser") == 0 and effective.get("runAsNonRoot") is False
    if not root and effective.get("runAsNonRoot") is not True:
        yield job.problem((*security, "runAsNonRoot"), "the run may be root", "write true")
    if as_mapping(effective.get("seccompProfile")).get("type") not in ("RuntimeDefault", "Localhost"):
        yield job.problem((*security, "seccompProfile"), "there is none", "write type: RuntimeDefault")


def _check_resources(job: Document, path: FieldPath, resources: Mapping[str, Any]) -> Iterator[Problem]:
    requests, limits = as_mapping(resources.get("requests")), as_mapping(resources.get("limits"))
    for name in ("cpu", "memory"):
        if name not in limits:
            yield job.problem(
                (*path, "resources", "limits"), f"there is no limit of {name}", "a run that shares is not comparable"
            )
    for name in sorted({*map(str, requests), *map(str, limits)}):
        asked, limit = syntax.quantity(requests.get(name)), syntax.quantity(limits.get(name))
        where = (*path, "resources", "requests", name)
        if asked != limit and (name in requests or "/" in name):
            yield job.problem(
                where,
                f"is {shown(requests.get(name))} and the limit {shown(limits.get(name))}",
                "write the same in both",
            )
        if "/" in name and limit is not None and limit != int(limit):
            yield job.problem((*path, "resources", "limits", name), "a part of a device", "write a whole number")


def _check_variables(job: Document, path: FieldPath, container: Mapping[str, Any]) -> Iterator[Problem]:
    entries = [as_mapping(entry) for entry in as_list(container.get("env"))]
    for name, count in Counter(str(entry.get("name")) for entry in entries).items():
        if count > 1:
            yield job.problem((*path, "env"), f"{name} is set twice; the last one counts", "set it once")
    for index, entry in enumerate(entries):
        value = entry.get("value")
        # The master's host is the job's name, which may well look like a key: sk-learn-nightly.
        if not isinstance(value, str) or not value or entry.get("name") == MASTER_VARIABLE:
            continue
        if is_secret(str(entry.get("name")), value):
            yield job.problem(
                (*path, "env", index),
                f"{entry.get('name')} looks like a secret, which everyone who may read the job could read",
                "keep it in a Secret, and name that under envFrom",
            )
    values = {str(entry.get("name")): entry.get("value") for entry in entries}
    log = container.get("terminationMessagePath") or "/dev/termination-log"
    if TERMINATION_VARIABLE in values and values[TERMINATION_VARIABLE] != log:
        yield job.problem(
            (*path, "env"), f"{TERMINATION_VARIABLE} is not the terminationMessagePath {shown(log)}", "write the same"
        )
    parts = syntax.image_parts(image) if isinstance(image := container.get("image"), str) else None
    if parts and DIGEST_VARIABLE in values and values[DIGEST_VARIABLE] != parts[2]:
        yield job.problem((*path, "env"), f"{DIGEST_VARIABLE} is not the image's digest", "write the same in both")


def _check_arguments(job: Document, path: FieldPath, container: Mapping[str, Any]) -> Iterator[Problem]:
    """What the image is told: who it is, how many, and to end before the cluster ends it."""
    words = as_list(container.get("args"))
    if container.get("command"):
        yield job.problem((*path, "command"), "replaces the image's entrypoint", "leave it out")
    for option in ("--nodes", "--gpus", "--run-id"):
        if argument(words, option) is None:
            yield job.problem((*path, "args"), f"{option} is missing", "make a new job with `flagbench job`")
    nodes, completions = argument(words, "--nodes"), job.at("spec", "completions")
    if nodes is not None and nodes != str(completions):
        yield job.problem(
            (*path, "args"), f"--nodes is {nodes} and completions {shown(completions)}", "write the same in both"
        )
    yield from _check_minutes(job, (*path, "args"), argument(words, "--max-minutes"))
    yield from _check_devices(job, path, container, argument(words, "--gpus"))


def _check_minutes(job: Document, path: FieldPath, minutes: str | None) -> Iterator[Problem]:
    deadline = job.at("spec", "activeDeadlineSeconds")
    if not is_count(deadline, 1):
        return
    try:
        early = minutes is not None and 0 < float(minutes) * 60 < deadline
    except ValueError:
        early = False
    if not early:
        yield job.problem(
            path,
            f"--max-minutes is {shown(minutes)}, but after {deadline} s the cluster deletes the pods with their logs",
            "write --max-minutes=M, well before the deadline",
        )


def _check_devices(
    job: Document, path: FieldPath, container: Mapping[str, Any], gpus: str | None
) -> Iterator[Problem]:
    limits = as_mapping(as_mapping(container.get("resources")).get("limits"))
    own = job.mapping("metadata", "annotations").get(RESOURCE_ANNOTATION)
    # Where the job does not say which are its devices: by convention of the device plugins, nvidia.com/gpu for one.
    names = [own] if isinstance(own, str) else [name for name in limits if str(name).endswith("/gpu")]
    for name in names:
        count = syntax.quantity(limits.get(name))
        if name == NO_RESOURCE or gpus is None:
            continue
        if not gpus.isdecimal() or count != Decimal(gpus):
            yield job.problem(
                (*path, "resources", "limits", name),
                f"is {shown(limits.get(name))} and --gpus {gpus}",
                "write the same in both",
            )


def argument(words: list[Any], option: str) -> str | None:
    """The value of an option among the words of a command line, the last where it stands twice; else None."""
    found = None
    for index, word in enumerate(words):
        if not isinstance(word, str):
            continue
        if word.startswith(f"{option}="):
            found = word.partition("=")[2]
        elif word == option and index + 1 < len(words):
            found = str(words[index + 1])
    return found
