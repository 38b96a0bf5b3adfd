"""Whether this image and this machine are what the stack says, asked by the agent before a rank starts.

The parent never imports torch, and a rank that found it out would cost every other rank its start.
"""

import importlib
import os
import platform
import re
import sys
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases.node.docker_command import docker_command, docker_hints
from flagbench_cases.shared.errors import CaseError, ExitCode
from flagbench_cases.shared.system import in_image
from flagbench_cases.telemetry.summary import read_start

# Docker's default for /dev/shm, through which the ranks of a node exchange what does not go over the devices.
SMALL_SHM = 64 * 2**20


def check(plan: Dict[str, Any]) -> None:
    """Raise, with exit code 13, where image or devices are not those of the plan's stack; warn on stderr of less."""
    stack, gpus = plan["stack"], plan["config"]["gpus"]
    torch = import_torch(plan)
    if in_image():
        check_software(plan, torch)
    if stack["device"]["kind"] == "cpu":
        return
    driver = (read_start(plan["telemetry"]) or {}).get("driver_version")
    old = older(driver, stack["device"]["driver_floor"])
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < gpus:
        raise CaseError(
            "%d device(s) were asked for and this machine shows %d to torch %s" % (gpus, found, torch.__version__)
            + ("; its driver %s is older than %s" % (driver, stack["device"]["driver_floor"]) if old else ""),
            missing_devices(plan, found, old),
            ExitCode.WRONG_HARDWARE,
        )
    if old:
        # Not refused: data-centre devices also run on older branches, with the compatibility package of the image.
        warn("the driver %s is older than %s, which the stack asks for" % (driver, stack["device"]["driver_floor"]))
    room = shared_memory()
    if gpus > 1 and room is not None and room <= SMALL_SHM:
        warn(
            "/dev/shm has %d MiB for %d ranks; start the container with --shm-size %s"
            % (room // 2**20, gpus, stack["docker"]["shm_size"])
        )


def import_torch(plan: Dict[str, Any]) -> Any:
    """The module torch, or CaseError: a vendor's torch does not even import where its driver's libraries are not."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        words, remedy = "torch is not complete here: %s" % error, "install the stack's packages"
        if in_image():
            raise CaseError(words, rebuild(plan), ExitCode.WRONG_HARDWARE) from None
        raise CaseError(words, remedy) from None
    except (ImportError, OSError) as error:
        words = "torch could not be imported: %s" % str(error).strip().split("\n")[0]
        if plan["stack"]["device"]["kind"] == "cpu":
            raise CaseError(words, rebuild(plan) if in_image() else "reinstall the stack's packages") from None
        raise CaseError(words, missing_devices(plan, 0, False), ExitCode.WRONG_HARDWARE) from None


def check_software(plan: Dict[str, Any], torch: Any) -> None:
    """Raise where Python, torch or another expected package of this image is not what its stack's manifest says."""
    wrong: List[str] = []
    for name, expected in [("python", plan["stack"]["python"]), *sorted(plan["stack"]["expects"].items())]:
        found = version_of(name, torch)
        if not matches(found, expected):
            wrong.append("%s %s where %s is expected" % (name, found or "(none)", expected))
    if wrong:
        raise CaseError(
            "this image is not what the stack %s says: it has %s" % (plan["stack"]["name"], ", ".join(wrong)),
            rebuild(plan),
            ExitCode.WRONG_HARDWARE,
        )


def version_of(name: str, torch: Any) -> Optional[str]:
    """The version that runs here: of the interpreter, of torch, of the toolkit torch was built with, of a package."""
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
    """Whether a version is the expected one, or begins with it and a boundary: 2.13 is 2.13.0+cpu, and not 2.130."""
    return found is not None and (found == expected or found.startswith((expected + ".", expected + "+")))


def older(driver: Optional[str], floor: Optional[str]) -> bool:
    """Whether a driver is known to be older than the floor; numbers are compared part by part."""
    if driver is None or floor is None:
        return False
    return _parts(driver) < _parts(floor)


def _parts(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def missing_devices(plan: Dict[str, Any], found: int, old_driver: bool) -> str:
    """What to do about devices that are not there, in the words of where this runs."""
    stack, config = plan["stack"], plan["config"]
    device = stack["device"]
    fewer = " or use --gpus %d" % found if found else ""
    if old_driver:
        return "install the driver %s or newer, or choose a stack for this one" % device["driver_floor"]
    if not in_image():
        variable = device["visibility_variable"]
        return "check the accelerator's driver%s,%s" % (
            " and %s" % variable if variable else "",
            fewer or " or choose another stack (flagbench run %s:STACK; else FLAGBENCH_STACK)" % config["case"],
        )
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        resource = stack["kubernetes"]["resource"]
        return "give every pod %s: %d, as the job does that flagbench writes,%s" % (
            resource,
            config["gpus"],
            fewer or " and check the node's device plugin",
        )
    hints = "".join("; " + hint for hint in docker_hints(plan))
    return "give the container its devices%s%s: %s" % (fewer, hints, docker_command(plan))


def rebuild(plan: Dict[str, Any]) -> str:
    """How an image becomes what its stack says."""
    return "rebuild the image: flagbench build %s:%s" % (plan["config"]["case"], plan["stack"]["name"])


def shared_memory(folder: str = "/dev/shm") -> Optional[int]:
    """The size of the shared memory's file system, bytes; None where there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def warn(words: str) -> None:
    """Say on stderr what may cost speed or fail later; the run goes on."""
    sys.stderr.write("warning: %s\n" % words)
    sys.stderr.flush()
