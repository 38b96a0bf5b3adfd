"""Environment variables: which of them change a measurement, which may be published, and which hold secrets.

A record has the variables that change a measurement. The bundle of a run (its archive of logs and settings) also has
those that help to repeat it. Values that are secrets are replaced in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flagbench_core.redaction import REDACTED, is_secret, is_secret_name, redact, url_secrets

_BUNDLE_NAMES = frozenset(
    (
        # The image.
        "FLAGBENCH_STACK",
        "FLAGBENCH_IMAGE_DIGEST",
        "FLAGBENCH_CONTEXT_DIGEST",
        "FLAGBENCH_COMMIT",
        # The operating system, its loader, and Python.
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "TMPDIR",
        "TZ",
        # NVIDIA's container toolkit and libraries.
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_TF32_OVERRIDE",
        # Hugging Face's libraries.
        "TOKENIZERS_PARALLELISM",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        # The container engine and the scheduler.
        "DOCKER_HOST",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        # MetaX's drivers and libraries.
        "FORCE_ACTIVATE_WAIT",
        "ISU_FASTMODEL",
        "SET_DEVICE_NUMA_PREFERRED",
    )
)
"""Names of variables that a bundle has in addition to those of a record: they help to repeat the run."""
_PREFIXES = (
    # NVIDIA's libraries, and the collectives of NVIDIA and AMD.
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "NCCL_",
    "NVTE_",
    # MetaX's libraries.
    "MACA_",
    "MCCL_",
    # PyTorch and its compilers, DeepSpeed and vLLM.
    "PYTORCH_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "DS_",
    "VLLM_",
    # Networks: libfabric, Gloo, UCX.
    "FI_",
    "GLOO_",
    "UCX_",
    # Threads and memory of the processor: OpenMP of GNU and Intel, MKL, OpenBLAS, glibc.
    "GOMP_",
    "KMP_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "MALLOC_",
)
"""Prefixes of the names of variables that may change the speed of a library."""
_LOGS = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}
"""Variables that a rank of a run on several nodes sets itself, to write a log, so they do not describe the run."""
_MIN_SECRET_LENGTH = 6
"""Shorter values are not searched for in texts: they occur in the middle of words."""


GIVEN = "FLAGBENCH_ENV"
"""The variable with the names of the variables that were set by --env, separated by commas; these are published."""
LAUNCHER = "FLAGBENCH_LAUNCHER"
"""The variable by which an image knows that `flagbench run` started it, and prints the result of the run.

Without it the image prints the result on stderr itself.
"""


def variables_for_bundle(environment: Mapping[str, str], hide: Callable[[str], str] = redact) -> dict[str, str]:
    """The variables of a run that are published in its bundle. `hide` removes credentials from their values."""
    names = _measured_names(environment)
    names.update(name for name in environment if name in _BUNDLE_NAMES)
    return _hide_secrets(environment, names, hide)


def variables_for_record(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run that are published in its record: those that change a measurement.

    Paths are left out, since they name folders of the machine, unless they were set by --env.
    """
    secrets = secret_values(environment)
    requested = _requested_names(environment)
    paths = set()
    for name, text in environment.items():
        if text.startswith("/") and name not in requested:
            paths.add(name)
    names = _measured_names(environment) - _LOGS - paths
    return _hide_secrets(environment, names, lambda text: redact(text, secrets))


def _measured_names(environment: Mapping[str, str]) -> set[str]:
    """The names of the variables that change a measurement, or were set by --env to do so."""
    requested = _requested_names(environment)
    return {name for name in environment if name.startswith(_PREFIXES) or name in requested}


def _requested_names(environment: Mapping[str, str]) -> set[str]:
    """The names of the variables that were set by --env."""
    names = environment.get(GIVEN, "").split(",")
    return {name for name in names if name}


def _hide_secrets(environment: Mapping[str, str], names: set[str], hide: Callable[[str], str]) -> dict[str, str]:
    """The variables called `names`, sorted: secrets replaced, and other values as `hide` returns them."""
    variables = {}
    for name in sorted(names):
        if is_secret(name, environment[name]):
            variables[name] = REDACTED
        else:
            variables[name] = hide(environment[name])
    return variables


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The values of variables that hold a secret, and the users and passwords in URLs, sorted."""
    secrets: set[str] = set()
    for name, text in environment.items():
        if is_secret_name(name):
            secrets.add(text)
        if "://" in text:
            secrets |= url_secrets(text)
    return sorted(secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH)
