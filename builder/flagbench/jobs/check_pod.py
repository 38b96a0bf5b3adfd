"""The pods of a job: few rights, the devices they are told of, memory that holds /dev/shm, volumes that exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.options import DIGEST_VARIABLE, TERMINATION_VARIABLE
from flagbench.jobs.problems import Document, Problem, as_list, as_mapping, is_count, shown
from flagbench.schema import FieldPath

_POD = ("spec", "template", "spec")
_SHM = "/dev/shm"


def check_pod(job: Document) -> Iterator[Problem]:
    """What is wrong with the template of a job's pods."""
    yield from _check_isolation(job)
    yield from _check_volumes(job)
    containers = as_list(job.at(*_POD, "containers"))
    if not containers:
        yield job.problem((*_POD, "containers"), "there is no container", "make the job with `flagbench job`")
    for index, container in enumerate(containers):
        path, data = (*_POD, "containers", index), as_mapping(container)
        yield from _check_image(job, path, data)
        yield from _check_rights(job, path, data)
        yield from _check_resources(job, path, as_mapping(data.get("resources")))
        yield from _check_variables(job, path, data)
        yield from _check_arguments(job, path, data)


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


def _check_volumes(job: Document) -> Iterator[Problem]:
    path = (*_POD, "volumes")
    names = [str(as_mapping(volume).get("name")) for volume in as_list(job.at(*path))]
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield job.problem(path, f"two volumes are called {name}", "rename one")
    used: set[str] = set()
    for kind in ("containers", "initContainers"):
        for where, entry in job.each(*_POD, kind, "*", "volumeMounts", "*"):
            mount = as_mapping(entry)
            name = str(mount.get("name"))
            used.add(name)
            if name not in names:
                yield job.problem((*where, "name"), f"there is no volume {name!r}", "add it, or drop the mount")
            elif mount.get("mountPath") == _SHM:
                limit = job.at(*where[:-2], "resources", "limits", "memory")
                yield from _check_shm(job, (*path, names.index(name)), limit)
    for index, name in enumerate(names):
        if name not in used:
            yield job.problem((*path, index), f"nothing mounts the volume {name!r}", "leave it out")


def _check_shm(job: Document, path: FieldPath, limit: Any) -> Iterator[Problem]:
    """The volume behind /dev/shm; `limit` is the memory limit of the container that mounts it."""
    empty = job.mapping(*path, "emptyDir")
    if empty.get("medium") != "Memory":
        yield job.problem(path, f"{_SHM} is not memory of the pod's own", "write emptyDir with medium: Memory")
        return
    where, size, most = (
        (*path, "emptyDir", "sizeLimit"),
        syntax.quantity(empty.get("sizeLimit")),
        syntax.quantity(limit),
    )
    if not size:
        yield job.problem(where, f"{_SHM} has no size of its own", "write a sizeLimit")
    elif most is not None and size > most:
        yield job.problem(
            where,
            f"{shown(empty['sizeLimit'])} is more than the memory limit {shown(limit)}, against which it counts",
            "make it smaller, or the limit larger",
        )


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
    words = as_list(container.get("args"))
    nodes, gpus = argument(words, "--nodes"), argument(words, "--gpus")
    completions = job.at("spec", "completions")
    if nodes is not None and nodes != str(completions):
        yield job.problem(
            (*path, "args"), f"--nodes is {nodes} and completions {shown(completions)}", "write the same in both"
        )
    limits = as_mapping(as_mapping(container.get("resources")).get("limits"))
    # By convention of every vendor's device plugin: nvidia.com/gpu, metax-tech.com/gpu.
    devices = {name: syntax.quantity(value) for name, value in limits.items() if str(name).endswith("/gpu")}
    for name, count in devices.items():
        if gpus is not None and (not gpus.isdecimal() or count != Decimal(gpus)):
            yield job.problem(
                (*path, "resources", "limits", name),
                f"is {shown(limits[name])} and --gpus {gpus}",
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
