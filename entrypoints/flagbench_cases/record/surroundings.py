"""What a bundle says of a run's surroundings: variables that change a measurement, and no credential in any text."""

import functools
import json
from typing import Any, Dict, List, Mapping, Sequence

from flagbench_cases.shared.redaction import redact
from flagbench_core.redaction import REDACTED, is_secret, is_secret_name, url_secrets

NAMES = frozenset(
    (
        *("FLAGBENCH_STACK", "FLAGBENCH_IMAGE_DIGEST", "FLAGBENCH_CONTEXT_DIGEST", "FLAGBENCH_COMMIT"),
        *("LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TMPDIR", "TZ"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM"),
        *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
        *("FORCE_ACTIVATE_WAIT", "ISU_FASTMODEL", "SET_DEVICE_NUMA_PREFERRED"),
    )
)
PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "DS_", "FI_", "GLOO_", "GOMP_", "KMP_", "MACA_", "MALLOC_", "MCCL_", "MKL_"),
    *("NCCL_", "NVTE_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "UCX_"),
)
"""Of libraries whose speed they change."""
_SHORTEST_SECRET = 6
"""A shorter one would be found in the middle of words."""
_SHORT = 256


def allowed(environment: Mapping[str, str], known: Sequence[str]) -> Dict[str, str]:
    """The variables of a run that may be published, without credentials."""
    chosen = {name: value for name, value in environment.items() if name in NAMES or name.startswith(PREFIXES)}
    return {name: REDACTED if is_secret(name, value) else redact(value, known) for name, value in chosen.items()}


def secrets(environment: Mapping[str, str]) -> List[str]:
    """The values of variables that hold a secret, and the users and passwords in others."""
    found = {value for name, value in environment.items() if is_secret_name(name)}
    found.update(secret for value in environment.values() if "://" in value for secret in url_secrets(value))
    return sorted(secret for secret in found if len(secret) >= _SHORTEST_SECRET)


class Cleaner:
    """Removes credentials from JSON lines. Short texts, which repeat in most lines, are searched once."""

    def __init__(self, known: Sequence[str]) -> None:
        """`known`: secrets to remove beside everything that looks like a credential."""
        self._known = known
        self._short = functools.lru_cache(maxsize=4096)(self._text)
        self._is_secret = functools.lru_cache(maxsize=4096)(is_secret)
        self._changed = False

    def line(self, line: bytes) -> bytes:
        """A line without credentials; unchanged, byte for byte, where there are none."""
        text = line.decode("utf-8", "replace")
        self._changed = False
        try:
            value = self._value(json.loads(text))
        except (ValueError, RecursionError):  # a rank was killed while it wrote it
            clean = self._text(text)
            return line if clean == text else clean.encode("utf-8")
        if not self._changed:
            return line
        return json.dumps(value).encode("utf-8") + (b"\n" if line.endswith(b"\n") else b"")

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            clean = self._short(value) if len(value) <= _SHORT else self._text(value)
            self._changed = self._changed or clean != value
            return clean
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {self._value(key): self._named(key, item) for key, item in value.items()}
        return value

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            if (self._is_secret if len(value) <= _SHORT else is_secret)(name, value):
                self._changed = True
                return REDACTED
        elif not isinstance(value, (list, dict)):
            return value
        return self._value(value)

    def _text(self, text: str) -> str:
        return redact(text, self._known)
