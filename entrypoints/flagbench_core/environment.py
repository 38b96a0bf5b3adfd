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
"""Of libraries whose speed they change; other variables of the user are not published."""
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
    names = _measured(environment)
    names.update(name for name in environment if name in _NAMES)
    return _hide_secrets(environment, names, hide)


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in a record: those that change a measurement, without the machine's paths and names."""
    hidden = secrets(environment)
    requested = _requested(environment)
    paths = {name for name, text in environment.items() if text.startswith("/") and name not in requested}
    names = _measured(environment) - _LOGS - paths
    return _hide_secrets(environment, names, lambda text: redact(text, hidden))


def _measured(environment: Mapping[str, str]) -> set[str]:
    requested = _requested(environment)
    return {name for name in environment if name.startswith(_PREFIXES) or name in requested}


def _requested(environment: Mapping[str, str]) -> list[str]:
    """The names of the variables that were set by --env."""
    return environment.get(GIVEN, "").split(",")


def _hide_secrets(environment: Mapping[str, str], names: set[str], hide: Callable[[str], str]) -> dict[str, str]:
    variables = {}
    for name in sorted(names):
        if is_secret(name, environment[name]):
            variables[name] = REDACTED
        else:
            variables[name] = hide(environment[name])
    return variables


def secrets(environment: Mapping[str, str]) -> list[str]:
    """The values of variables that hold a secret, and the users and passwords in others."""
    hidden: set[str] = set()
    for name, text in environment.items():
        if is_secret_name(name):
            hidden.add(text)
        if "://" in text:
            hidden |= url_secrets(text)
    return sorted(secret for secret in hidden if len(secret) >= _SHORTEST_SECRET)
