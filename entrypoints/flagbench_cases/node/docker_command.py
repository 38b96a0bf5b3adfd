"""The docker command that starts this run with everything its stack needs: the remedy for missing devices.

It is composed inside the container, where the host's folders and devices are unknown. These are placeholders in the
command, explained by `docker_hints`.
"""

import argparse
import csv
import io
import os
import shlex
from typing import Any, Dict, List

from flagbench_cases.node import cli
from flagbench_cases.record import stores

# --mount rejects this placeholder; -v would create an empty volume of that name.
HOST_FOLDER = "HOSTDIR"


def docker_command(plan: Dict[str, Any]) -> str:
    """`docker run ...` as one shell-quoted line, from the plan that the parent wrote for the agent."""
    arguments = cli.parse(plan["argv"])
    case, stack, nodes = plan["config"]["case"], plan["stack"], plan["config"]["nodes"]
    words = ["docker", "run", "--rm", *_device_options(stack["docker"], nodes)]
    for folder, written in _folders(plan, arguments).items():
        words += ["--mount", _mount(folder, written)]
    if arguments.store and stores.chosen_folder(arguments.store) is None:
        # Docker takes the values from its own environment: none of them is written here.
        words += _repeat_option("--env", sorted(name for name in os.environ if name.startswith("AWS_")))
    words.append("flagbench/%s:%s" % (case, stack["name"]))
    words += _without_case(list(plan["argv"]), case)
    if nodes > 1:
        words += _rendezvous_options(plan, arguments)
    return _shell_quote(words)


def docker_hints(plan: Dict[str, Any]) -> List[str]:
    """What to replace in or add to the command, one hint each."""
    hints = []
    if _folders(plan, cli.parse(plan["argv"])):
        hints.append("replace every %s with a folder of the host" % HOST_FOLDER)
    needs = plan["stack"]["docker"]
    devices = needs["multi_node"]["devices"] if plan["config"]["nodes"] > 1 else []
    if devices:
        words = _repeat_option("--device", devices)
        if needs["root"]:
            # Only processes of root acquire capabilities; others pin memory within ulimit memlock.
            words += _repeat_option("--cap-add", needs["multi_node"]["capabilities"])
        hints.append("if the host has %s, add %s" % (_shell_quote(devices), _shell_quote(words)))
    return hints


def _device_options(needs: Dict[str, Any], nodes: int) -> List[str]:
    """Options for the devices, groups, capabilities and limits that every host of the stack has.

    InfiniBand devices are not among them: Docker rejects a device that the host lacks, and nodes without InfiniBand
    use TCP.
    """
    words = ["--gpus", needs["gpus"]] if needs["gpus"] else []
    words += _repeat_option("--device", needs["devices"])
    words += _repeat_option("--group-add", needs["groups"])
    words += _repeat_option("--cap-add", needs["capabilities"])
    words += ["--shm-size", needs["shm_size"]]
    for name, limit in sorted(needs["ulimits"].items()):
        words += ["--ulimit", "%s=%d" % (name, limit)]
    if needs["root"]:
        words += ["--user", "0:0"]
    if nodes > 1:
        # The ranks listen on ports that are not known in advance, so they cannot be published.
        words += ["--network", "host"]
    return words


def _repeat_option(option: str, values: List[str]) -> List[str]:
    return [word for value in values for word in (option, value)]


def _folders(plan: Dict[str, Any], arguments: argparse.Namespace) -> Dict[str, bool]:
    """The container's folders and files that the run uses, by path, and whether it writes to them."""
    data = plan["data"]
    if data and arguments.data:
        data = cli.locate_data(arguments.data)[1]  # the plan names only the data part of a prepared folder
    read = [data, arguments.weights, arguments.resume, arguments.ticket]
    written = [arguments.out, arguments.bundle, stores.chosen_folder(arguments.store)]
    found = {os.path.abspath(folder): False for folder in read if folder}
    found.update((os.path.abspath(folder), True) for folder in written if folder)
    return found


def _mount(folder: str, written: bool) -> str:
    """The value of `--mount`, which Docker parses as CSV."""
    fields = ["type=bind", "source=" + HOST_FOLDER, "target=" + folder]
    line = io.StringIO()
    # csv quotes a line break in a field only if its line terminator contains one.
    csv.writer(line, lineterminator="\r\n").writerow(fields if written else [*fields, "readonly"])
    return line.getvalue()[: -len("\r\n")]


def _without_case(arguments: List[str], case: str) -> List[str]:
    """The arguments without the case, which the image's entry point already names."""
    if case in arguments:
        arguments.remove(case)
    return arguments


def _rendezvous_options(plan: Dict[str, Any], arguments: argparse.Namespace) -> List[str]:
    """Node rank and master address, if they came from the environment: a new container has another."""
    words = []
    if arguments.node_rank is None:
        words += ["--node-rank", str(plan["node_rank"])]
    if arguments.master is None:
        host = "[%s]" % plan["host"] if ":" in plan["host"] else plan["host"]
        words += ["--master", "%s:%d" % (host, plan["port"])]
    return words


def _shell_quote(words: List[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
