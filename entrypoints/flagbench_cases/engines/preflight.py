"""Checks that the image and the machine match the stack, before any rank of the node uses a device.

The first rank of a node calls it: the parent process never imports torch. The other ranks wait for it.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shlex
import sys
from typing import Any, Iterable

from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.system import in_image
from flagbench_cases.telemetry.summary import read_start
from flagbench_core.config import engine_of
from flagbench_core.exit_codes import ExitCode

# Docker's default size of /dev/shm, which the ranks of a node use for host-side communication.
SMALL_SHM = 64 * 2**20
CHECKED_ENGINES = ("vllm",)
"""Engines whose module has `check`: they run with one release of their library, and not with all settings."""


class PreflightError(CaseError):
    """The image or the machine does not match the stack."""


def check(plan: dict[str, Any]) -> None:
    """Check that image and devices match the plan's stack, and warn of minor problems.

    Raises PreflightError (WRONG_HARDWARE) if they do not match, and (USAGE) if the engine refuses its library or a
    setting.
    """
    stack, gpus = plan["stack"], plan["config"]["gpus"]
    torch = import_torch(plan)
    check_engine(plan["config"], stack["device"]["kind"])
    differences = ", ".join(differing_software(stack, torch))
    if differences and in_image():
        words = f"this image does not match the stack {stack['name']}: it has {differences}"
        raise PreflightError(words, rebuild(plan), ExitCode.WRONG_HARDWARE)
    if differences:
        warn(f"this Python is not that of the stack {stack['name']}: it has {differences}")
    if stack["device"]["kind"] == "cpu":
        return
    driver = (read_start(plan["telemetry"]) or {}).get("driver_version")
    floor = stack["device"]["driver_floor"]
    old = older(driver, floor)
    devices = 0
    if torch.cuda.is_available():
        devices = torch.cuda.device_count()
    if devices < gpus:
        words = f"--gpus {gpus}, but torch {torch.__version__} finds {devices} device(s)"
        if old:
            words += f"; its driver {driver} is older than {floor}"
        raise PreflightError(words, missing_devices(plan, devices, old, torch), ExitCode.WRONG_HARDWARE)
    if old:
        # Only a warning: data-centre devices also run on older branches with the image's compatibility package.
        warn(f"the driver {driver} is older than {floor}, which the stack requires")
    if driver is None and floor is not None:
        warn(f"the driver's version is not known, so it was not compared with {floor}")
    room = shared_memory()
    if gpus > 1 and room is not None and room <= SMALL_SHM:
        remedy = f"start the container with --shm-size {stack['docker']['shm_size']}"
        warn(f"/dev/shm has only {room // 2**20} MiB for {gpus} ranks; {remedy}")


def check_engine(config: dict[str, Any], device_kind: str) -> None:
    """Let the engine of a resolved configuration check its library and settings. Raises PreflightError (USAGE).

    `device_kind`: the type of the device, `cpu` or `cuda`.
    """
    name = engine_of(load_case(config["case"]), config)
    if name not in CHECKED_ENGINES:
        return
    try:
        importlib.import_module(f"flagbench_cases.engines.{name}").check(config, device_kind)
    except UsageError as error:
        raise PreflightError(error.message, error.remedy, error.code) from None


def import_torch(plan: dict[str, Any]) -> Any:
    """Import torch. Raises PreflightError: a vendor's torch cannot be imported without its driver's libraries."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        words, remedy = f"the torch installation is incomplete: {error}", "install the stack's packages"
        if in_image():
            raise PreflightError(words, rebuild(plan), ExitCode.WRONG_HARDWARE) from None
        raise PreflightError(words, remedy) from None
    except (ImportError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        words = f"torch cannot be imported: {first_line}"
        if plan["stack"]["device"]["kind"] == "cpu":
            remedy = "reinstall the stack's packages"
            if in_image():
                remedy = rebuild(plan)
            raise PreflightError(words, remedy) from None
        raise PreflightError(words, missing_devices(plan, 0, False, None), ExitCode.WRONG_HARDWARE) from None


def differing_software(stack: dict[str, Any], torch: Any) -> list[str]:
    """Python, torch and other packages whose version differs from the stack's manifest, with both versions."""
    wrong: list[str] = []
    for name, expected in [("python", stack["python"]), *sorted(stack["expects"].items())]:
        version = version_of(name, torch)
        if not matches(version, expected):
            wrong.append(f"{name} {version or '(none)'} (expected {expected})")
    return wrong


def version_of(name: str, torch: Any) -> str | None:
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


def matches(version: str | None, expected: str) -> bool:
    """Whether a version equals or extends the expected one: 2.13 matches 2.13.0+cpu, but not 2.130."""
    if version is None:
        return False
    return version == expected or version.startswith((expected + ".", expected + "+"))


def older(driver: str | None, floor: str | None) -> bool:
    """Whether a driver version is known and older than the minimum."""
    if driver is None or floor is None:
        return False
    return _parts(driver) < _parts(floor)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def missing_devices(plan: dict[str, Any], devices: int, old_driver: bool, torch: Any) -> str:
    """The remedy for missing devices, of which there are `devices`, for the platform this runs on."""
    stack, config = plan["stack"], plan["config"]
    device = stack["device"]
    fewer = ""
    if devices:
        fewer = f" or use --gpus {devices}"
    if old_driver:
        return f"install driver {device['driver_floor']} or newer, or choose a stack for this driver"
    if not in_image():
        on_processor = f" or run on a processor: flagbench run {config['case']}:cpu --preset tiny"
        if torch is not None and "+cpu" in torch.__version__:
            return f"install a torch that is built for this device (pytorch.org),{on_processor}"
        suspects = "driver"
        if device["visibility_variable"]:
            suspects = f"driver and {device['visibility_variable']}"
        return f"check the accelerator's {suspects},{fewer or on_processor}"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        resource = f"{stack['kubernetes']['resource']}: {config['gpus']}"
        alternative = fewer or " and check the node's device plugin"
        return f"request {resource} for every pod, as `flagbench job` does,{alternative}"
    return f"give the container its devices{fewer}: docker run {docker_options(stack['docker'], config['nodes'])}"


def docker_options(needs: dict[str, Any], nodes: int) -> str:
    """The options of `docker run` for what a stack needs: devices, groups, capabilities and limits.

    Docker rejects a device that the host lacks, so InfiniBand devices are named apart: without them nodes use TCP.
    """
    words: list[str] = []
    if needs["gpus"]:
        words += ["--gpus", needs["gpus"]]
    words += _repeat("--device", needs["devices"])
    words += _repeat("--group-add", needs["groups"])
    words += _repeat("--cap-add", needs["capabilities"])
    words += ["--shm-size", needs["shm_size"]]
    words += _repeat("--ulimit", [f"{name}={limit}" for name, limit in sorted(needs["ulimits"].items())])
    if needs["root"]:
        words += ["--user", "0:0"]
    if nodes == 1:
        return _quote(words)
    # The ranks listen on ports that are not known in advance, so they cannot be published.
    words += ["--network", "host"]
    fast = _repeat("--device", needs["multi_node"]["devices"])
    if not fast:
        return _quote(words)
    # Only processes of root acquire capabilities; others pin memory within ulimit memlock.
    if needs["root"]:
        fast += _repeat("--cap-add", needs["multi_node"]["capabilities"])
    return f"{_quote(words)} (and if the host has them: {_quote(fast)})"


def _repeat(option: str, values: Iterable[str]) -> list[str]:
    """An option once for each value."""
    words = []
    for value in values:
        words += [option, value]
    return words


def _quote(words: list[str]) -> str:
    return " ".join(map(shlex.quote, words))


def rebuild(plan: dict[str, Any]) -> str:
    """The remedy for an image that does not match its stack."""
    return f"rebuild the image: flagbench build {plan['config']['case']}:{plan['stack']['name']}"


def shared_memory() -> int | None:
    """The size of the shared memory file system, bytes; None if it is not mounted."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def warn(words: str) -> None:
    """Warn on stderr of something that may cost speed or fail later."""
    sys.stderr.write(f"warning: {words}\n")
    sys.stderr.flush()
