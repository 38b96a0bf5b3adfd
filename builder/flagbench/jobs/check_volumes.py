"""The volumes of a job's pods: each of one harmless source, at a place of its own; /dev/shm is memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from flagbench.jobs import syntax
from flagbench.jobs.problems import EACH, Document, Problem, as_list, as_mapping, shown
from flagbench.schema import FieldPath

_POD = ("spec", "template", "spec")
_SHM = "/dev/shm"


def check_volumes(job: Document) -> Iterator[Problem]:
    """What is wrong with the volumes of a job's pods, and with where its containers mount them."""
    path = (*_POD, "volumes")
    volumes = [as_mapping(volume) for volume in as_list(job.at(*path))]
    names = [str(volume.get("name")) for volume in volumes]
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield job.problem(path, f"two volumes are called {name}", "rename one")
    for index, volume in enumerate(volumes):
        yield from _check_source(job, (*path, index), volume)
    used: set[str] = set()
    for kind in ("containers", "initContainers"):
        for where, entry in job.each(*_POD, kind, EACH, "volumeMounts", EACH):
            mount = as_mapping(entry)
            name = str(mount.get("name"))
            used.add(name)
            if name not in names:
                yield job.problem((*where, "name"), f"there is no volume {name!r}", "add it, or drop the mount")
            elif mount.get("mountPath") == _SHM:
                limit = job.at(*where[:-2], "resources", "limits", "memory")
                yield from _check_shm(job, (*path, names.index(name)), limit)
        yield from _check_places(job, kind)
    for index, name in enumerate(names):
        if name not in used:
            yield job.problem((*path, index), f"nothing mounts the volume {name!r}", "leave it out")


def _check_source(job: Document, path: FieldPath, volume: Any) -> Iterator[Problem]:
    sources = [field for field, value in volume.items() if field != "name" and value is not None]
    if len(sources) != 1:
        what = " and ".join(map(str, sources)) or "nothing"
        yield job.problem(path, f"the volume comes from {what}", "give it one source, like emptyDir: {}")
    if "hostPath" in sources:
        yield job.problem(
            (*path, "hostPath"),
            "opens the node's own files to the run",
            "use a PersistentVolumeClaim, or emptyDir",
        )
    for index, source in enumerate(as_list(as_mapping(volume.get("projected")).get("sources"))):
        if "serviceAccountToken" in as_mapping(source):
            yield job.problem(
                (*path, "projected", "sources", index, "serviceAccountToken"),
                "a run needs no token of the cluster",
                "leave it out",
            )


def _check_places(job: Document, kind: str) -> Iterator[Problem]:
    for container, mounts in job.each(*_POD, kind, EACH, "volumeMounts"):
        seen: set[str] = set()
        for index, mount in enumerate(as_list(mounts)):
            place = as_mapping(mount).get("mountPath")
            if not isinstance(place, str):
                continue
            where = (*container, index, "mountPath")
            if (plain := place.rstrip("/")) in seen:
                yield job.problem(where, f"two volumes are mounted at {shown(place)}", "mount one elsewhere")
            seen.add(plain)


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
