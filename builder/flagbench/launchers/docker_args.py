"""A container as arguments of the engine's API, and as the equivalent `docker run` command."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable
from typing import Any

from flagbench.launchers.container import RUN_LABEL, Container, size_in_bytes
from flagbench.launchers.folders import Folder


def engine_config(container: Container, image: str) -> dict[str, Any]:
    """The body of the engine's `POST /containers/create`; `image` is the id or name that it runs.

    Every value is a JSON string of its own, so that no folder name can be misread.
    """
    return {
        "Image": image,
        "Cmd": list(container.arguments),
        "Env": [f"{name}={value}" for name, value in container.environment.items()],
        "Labels": {RUN_LABEL: container.run},
        "User": container.user or "",
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(container),
    }


def _host_config(container: Container) -> dict[str, Any]:
    granted = container.grants
    config: dict[str, Any] = {
        "NetworkMode": container.network,
        "ShmSize": size_in_bytes(granted.shm_size, "shm_size"),
        "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in sorted(granted.ulimits.items())],
        "GroupAdd": list(container.groups),
        "CapAdd": list(granted.capabilities),
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in granted.devices
        ],
        "Mounts": [
            {"Type": "bind", "Source": f.source, "Target": f.target, "ReadOnly": not f.writable}
            for f in container.folders
        ],
    }
    if granted.gpus is not None:
        # The schema of stacks knows no other value than `all`, which the API counts as -1.
        config["DeviceRequests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
    if container.memory is not None:
        # Without the second the engine grants as much swap again, and a run that swaps measures the disk.
        config["Memory"] = config["MemorySwap"] = container.memory
    return config


def docker_line(container: Container) -> str:
    """`docker run ...` for a shell, every word quoted. The image's digest is not among it: it is asked for later."""
    granted = container.grants
    memory = [] if container.memory is None else [str(container.memory)]
    options: dict[str, Iterable[str]] = {
        "--label": [f"{RUN_LABEL}={container.run}"],
        "--env": (f"{name}={value}" for name, value in container.environment.items()),
        "--user": [container.user] if container.user else [],
        "--network": [container.network],
        "--gpus": [granted.gpus] if granted.gpus else [],
        "--device": granted.devices,
        "--group-add": container.groups,
        "--cap-add": granted.capabilities,
        "--shm-size": [granted.shm_size],
        "--ulimit": (f"{name}={limit}" for name, limit in sorted(granted.ulimits.items())),
        "--memory": memory,
        "--memory-swap": memory,
        "--mount": map(_mount, container.folders),
    }
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    return shlex.join(["docker", "run", "--rm", *words, container.image, *container.arguments])


def _mount(folder: Folder) -> str:
    """The value of `--mount`, which docker reads as one line of CSV."""
    fields = ["type=bind", f"source={folder.source}", f"target={folder.target}"]
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(fields if folder.writable else [*fields, "readonly"])
    # Written with an end of line, because the writer quotes for its sake, and taken off again.
    return line.getvalue()[:-2]
