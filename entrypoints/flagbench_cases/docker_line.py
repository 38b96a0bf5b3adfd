"""The command that starts this run in its image with all that its stack needs: the remedy for missing devices."""

import shlex
from typing import Any, Dict, List, Sequence


def docker_line(stack: Dict[str, Any], case: str, arguments: Sequence[str], nodes: int) -> str:
    """`docker run ...` as one line for a shell, every word quoted.

    `stack` is the compiled manifest, `arguments` what the image was started with, the case perhaps among them: the
    image's entry point names it already.
    """
    words = ["docker", "run", "--rm", *_grants(stack["docker"], nodes)]
    words.append("flagbench/%s:%s" % (case, stack["name"]))
    words += _without(list(arguments), case)
    return " ".join(shlex.quote(word) for word in words)


def _grants(needs: Dict[str, Any], nodes: int) -> List[str]:
    """Devices, groups, capabilities and limits; what only several nodes need where there are several."""
    several = needs["multi_node"] if nodes > 1 else {"devices": [], "capabilities": []}
    words = ["--gpus", needs["gpus"]] if needs["gpus"] else []
    for option, values in (
        ("--device", needs["devices"] + several["devices"]),
        ("--group-add", needs["groups"]),
        ("--cap-add", needs["capabilities"] + several["capabilities"]),
    ):
        for value in values:
            words += [option, value]
    words += ["--shm-size", needs["shm_size"]]
    for name, limit in sorted(needs["ulimits"].items()):
        words += ["--ulimit", "%s=%d" % (name, limit)]
    if needs["root"]:
        words += ["--user", "0:0"]
    if nodes > 1:
        # The ranks listen on ports that nobody knows beforehand, so none can be published.
        words += ["--network", "host"]
    return words


def _without(arguments: List[str], case: str) -> List[str]:
    if case in arguments:
        arguments.remove(case)
    return arguments
