"""Variables of the environment: which of them change a measurement and may be published, and which hold secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flagbench_core.redaction import REDACTED, is_secret, is_secret_name, redact, url_secrets

_NAMES = frozenset(
    (
        *("FLAGBENCH_STACK", "FLAGBENCH_IMAGE_DIGEST", "FLAGBENCH_CONTEXT_DIGEST", "FLAGBENCH_COMMIT"),
        *("LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TMPDIR", "TZ"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM"),
        *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DOCKER_HOST", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
        *("FORCE_ACTIVATE_WAIT", "ISU_FASTMODEL", "SET_DEVICE_NUMA_PREFERRED"),
    )
)
_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "DS_", "FI_", "GLOO_", "GOMP_", "KMP_", "MACA_", "MALLOC_", "MCCL_", "MKL_"),
    *("NCCL_", "NVTE_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "UCX_"),
)
"""Of libraries whose speed they change; anything else is nobody's business."""
_LOGS = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}
"""Set by a rank itself on several nodes, with a path of this run."""
_SHORTEST_SECRET = 6
"""A shorter one would be found in the middle of words."""


GIVEN = "FLAGBENCH_ENV"
"""Names of the variables that were given by --env, separated by commas; all of them are published."""
LAUNCHER = "FLAGBENCH_LAUNCHER"
"""Set by `flagbench run`, which shows the answer itself; without it an image prints the answer on stderr."""


def published(environment: Mapping[str, str], hide: Callable[[str], str] = redact) -> dict[str, str]:
    """The variables of a run that may be published. `hide` removes credentials from their values."""
    return _hidden(environment, {name for name in environment if name in _NAMES} | _measured(environment), hide)


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that its record has: what changes a measurement, without the machine's paths and names."""
    known = secrets(environment)
    named = environment.get(GIVEN, "").split(",")
    paths = {name for name, value in environment.items() if value.startswith("/") and name not in named}
    return _hidden(environment, _measured(environment) - _LOGS - paths, lambda value: redact(value, known))


def _measured(environment: Mapping[str, str]) -> set[str]:
    given = environment.get(GIVEN, "").split(",")
    return {name for name in environment if name.startswith(_PREFIXES) or name in given}


def _hidden(environment: Mapping[str, str], names: set[str], hide: Callable[[str], str]) -> dict[str, str]:
    values = ((name, environment[name]) for name in sorted(names))
    return {name: REDACTED if is_secret(name, value) else hide(value) for name, value in values}


def secrets(environment: Mapping[str, str]) -> list[str]:
    """The values of variables that hold a secret, and the users and passwords in others."""
    found = {value for name, value in environment.items() if is_secret_name(name)}
    found.update(secret for value in environment.values() if "://" in value for secret in url_secrets(value))
    return sorted(secret for secret in found if len(secret) >= _SHORTEST_SECRET)
