"""Checks that the image and the machine match the stack, run by the agent before any rank starts.

Not by the parent, which never imports torch, and not by the ranks, which would all have to start first.
"""

import importlib
import os
import platform
import re
import shlex
import sys
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.system import in_image
from flagbench_cases.telemetry.summary import read_start
from flagbench_core.exit_codes import ExitCode

# Docker's default size of /dev/shm, which the ranks of a node use for host-side communication.
SMALL_SHM = 64 * 2**20


def check(plan: Dict[str, Any]) -> None:
    """Raise CaseError (13) if image or devices do not match the plan's stack; warn on stderr of minor problems."""
    stack, gpus = plan["stack"], plan["config"]["gpus"]
    torch = import_torch(plan)
    other = ", ".join(differing_software(stack, torch))
    if other and in_image():
        words = "this image does not match the stack %s: it has %s" % (stack["name"], other)
        raise CaseError(words, rebuild(plan), ExitCode.WRONG_HARDWARE)
    if other:
        warn("this Python is not that of the stack %s: it has %s" % (stack["name"], other))
    if stack["device"]["kind"] == "cpu":
        return
    driver = (read_start(plan["telemetry"]) or {}).get("driver_version")
    old = older(driver, stack["device"]["driver_floor"])
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < gpus:
        raise CaseError(
            "--gpus %d, but torch %s finds %d device(s)" % (gpus, torch.__version__, found)
            + ("; its driver %s is older than %s" % (driver, stack["device"]["driver_floor"]) if old else ""),
            missing_devices(plan, found, old, torch),
            ExitCode.WRONG_HARDWARE,
        )
    if old:
        # Only a warning: data-centre devices also run on older branches with the image's compatibility package.
        warn("the driver %s is older than %s, which the stack requires" % (driver, stack["device"]["driver_floor"]))
    if driver is None and stack["device"]["driver_floor"] is not None:
        warn("the driver's version is not known, so it was not compared with %s" % stack["device"]["driver_floor"])
    room = shared_memory()
    if gpus > 1 and room is not None and room <= SMALL_SHM:
        warn(
            "/dev/shm has only %d MiB for %d ranks; start the container with --shm-size %s"
            % (room // 2**20, gpus, stack["docker"]["shm_size"])
        )


def import_torch(plan: Dict[str, Any]) -> Any:
    """Import torch. Raises CaseError: a vendor's torch cannot even be imported without its driver's libraries."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        words, remedy = "the torch installation is incomplete: %s" % error, "install the stack's packages"
        if in_image():
            raise CaseError(words, rebuild(plan), ExitCode.WRONG_HARDWARE) from None
        raise CaseError(words, remedy) from None
    except (ImportError, OSError) as error:
        words = "torch cannot be imported: %s" % str(error).strip().split("\n")[0]
        if plan["stack"]["device"]["kind"] == "cpu":
            raise CaseError(words, rebuild(plan) if in_image() else "reinstall the stack's packages") from None
        raise CaseError(words, missing_devices(plan, 0, False, None), ExitCode.WRONG_HARDWARE) from None


def differing_software(stack: Dict[str, Any], torch: Any) -> List[str]:
    """Python, torch and other packages whose version differs from the stack's manifest, with both versions."""
    wrong: List[str] = []
    for name, expected in [("python", stack["python"]), *sorted(stack["expects"].items())]:
        found = version_of(name, torch)
        if not matches(found, expected):
            wrong.append("%s %s (expected %s)" % (name, found or "(none)", expected))
    return wrong


def version_of(name: str, torch: Any) -> Optional[str]:
    """The installed version of Python, torch, the toolkit torch was built with, or a package."""
    if name == "python":
        return platform.python_version()
    if name == "torch":
        return str(torch.__version__)
    if name == "cuda":
        return torch.version.cuda
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def matches(found: Optional[str], expected: str) -> bool:
    """Whether a version equals or extends the expected one: 2.13 matches 2.13.0+cpu, but not 2.130."""
    return found is not None and (found == expected or found.startswith((expected + ".", expected + "+")))


def older(driver: Optional[str], floor: Optional[str]) -> bool:
    """Whether a driver version is known and older than the minimum."""
    if driver is None or floor is None:
        return False
    return _parts(driver) < _parts(floor)


def _parts(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def missing_devices(plan: Dict[str, Any], found: int, old_driver: bool, torch: Any) -> str:
    """The remedy for missing devices, for the platform this runs on."""
    stack, config = plan["stack"], plan["config"]
    device = stack["device"]
    fewer = " or use --gpus %d" % found if found else ""
    if old_driver:
        return "install driver %s or newer, or choose a stack for this driver" % device["driver_floor"]
    if not in_image():
        variable = device["visibility_variable"]
        other = " or run on a processor: flagbench run %s:cpu --preset tiny" % config["case"]
        if torch is not None and "+cpu" in torch.__version__:
            return "install a torch that is built for this device (pytorch.org),%s" % other
        return "check the accelerator's driver%s,%s" % (" and %s" % variable if variable else "", fewer or other)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        resource = stack["kubernetes"]["resource"]
        return "request %s: %d for every pod, as `flagbench job` does,%s" % (
            resource,
            config["gpus"],
            fewer or " and check the node's device plugin",
        )
    return "give the container its devices%s: docker run %s" % (
        fewer,
        docker_options(stack["docker"], config["nodes"]),
    )


def docker_options(needs: Dict[str, Any], nodes: int) -> str:
    """The options of `docker run` for what a stack needs: devices, groups, capabilities and limits.

    Docker rejects a device that the host lacks, so InfiniBand devices are named apart: without them nodes use TCP.
    """
    repeated = {"--device": needs["devices"], "--group-add": needs["groups"], "--cap-add": needs["capabilities"]}
    words = ["--gpus", needs["gpus"]] if needs["gpus"] else []
    words += [word for option, values in repeated.items() for value in values for word in (option, value)]
    words += ["--shm-size", needs["shm_size"]]
    words += [word for item in sorted(needs["ulimits"].items()) for word in ("--ulimit", "%s=%d" % item)]
    words += ["--user", "0:0"] if needs["root"] else []
    if nodes == 1:
        return _quote(words)
    # The ranks listen on ports that are not known in advance, so they cannot be published.
    words += ["--network", "host"]
    fast = [word for device in needs["multi_node"]["devices"] for word in ("--device", device)]
    # Only processes of root acquire capabilities; others pin memory within ulimit memlock.
    held = needs["multi_node"]["capabilities"] if fast and needs["root"] else []
    fast += [word for name in held for word in ("--cap-add", name)]
    return _quote(words) + (" (and if the host has them: %s)" % _quote(fast) if fast else "")


def _quote(words: List[str]) -> str:
    return " ".join(map(shlex.quote, words))


def rebuild(plan: Dict[str, Any]) -> str:
    """The remedy for an image that does not match its stack."""
    return "rebuild the image: flagbench build %s:%s" % (plan["config"]["case"], plan["stack"]["name"])


def shared_memory() -> Optional[int]:
    """The size of the shared memory file system, bytes; None if it is not mounted."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def warn(words: str) -> None:
    """Warn on stderr of something that may cost speed or fail later."""
    sys.stderr.write("warning: %s\n" % words)
    sys.stderr.flush()
