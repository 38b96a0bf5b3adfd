"""A job as YAML: the template manifests/kubernetes/job.yaml.j2, with every value written as a quoted scalar."""

from __future__ import annotations

import json
import math
import re
import shlex
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from flagbench.runs.launchers.kubernetes.request import JobRequest
from flagbench.schema import shipped_manifests
from flagbench_core import __version__

_DEADLINE_SLACK = 1800
"""Seconds beyond --max-minutes for waiting for nodes, pulling a large image and starting."""
_ONE_NODE_LABEL = "kubernetes.io/hostname"


def render_job(request: JobRequest) -> str:
    """The Service and the Job, in the order in which they are to be made, below the command that makes them again."""
    needs, gpus = request.stack.kubernetes, request.run.gpus
    # What is written to /dev/shm counts against the memory of the pod.
    memory = (needs.memory_per_device_gib + needs.shm_per_device_gib) * gpus
    resources = {"cpu": str(needs.cpus_per_device * gpus), "memory": f"{memory}Gi"}
    if needs.resource is not None:
        resources[needs.resource] = str(gpus)
    alike = [key for key, values in request.node_labels.items() if len(values) > 1 and key != _ONE_NODE_LABEL]
    values = {
        "request": request,
        "deadline": math.ceil(request.max_minutes * 60) + _DEADLINE_SLACK,
        "shm": f"{needs.shm_per_device_gib * gpus}Gi",
        "resources": {**resources, **request.rdma},
        "alike": alike if request.run.nodes > 1 else [],
        # Pinning memory for RDMA needs a capability that other uids cannot hold.
        "root": bool(request.rdma) or request.stack.docker.root,
    }
    header = f"# Made by flagbench {__version__}:\n#   {_ascii(shlex.join(request.command()))}\n"
    return header + _template().render(values)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(shipped_manifests() / "kubernetes"),
        # Applied to the value of every {{ }}, so that none can be forgotten.
        finalize=quote,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("job.yaml.j2")


def quote(value: Any) -> str:
    """A value as YAML that every parser reads back as the same: ASCII JSON, in which strings are always quoted."""
    return _ascii(json.dumps(value, ensure_ascii=False))


def _ascii(text: str) -> str:
    """Anything but printable ASCII, line breaks of any kind included, as YAML escapes it between double quotes."""
    return re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)
