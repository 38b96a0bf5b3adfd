"""What needs kubectl: submitting a job."""

from __future__ import annotations

import shutil
import subprocess

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers import Health
from flagbench_core.exit_codes import ExitCode

_SECONDS = 30


def health() -> Health:
    """Whether jobs can be submitted from here; kubectl is not started, and no server contacted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return Health(False, "kubectl is not installed", "needed to submit jobs, not to print them")
    return Health(True, f"{kubectl} (no server contacted)")


def submit(job: str) -> str:
    """Apply the YAML of a job; returns what kubectl said. Raises FlagbenchError (engine) where it cannot."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FlagbenchError(
            "--submit needs kubectl, which is not installed", remedy="install it, or apply the printed job elsewhere"
        )
    try:
        done = subprocess.run(
            [kubectl, "apply", "--validate=strict", "--filename=-"],
            input=job,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
        reason = " ".join(done.stderr.split())
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_SECONDS} s"
    except OSError as error:
        reason = str(error.strerror)
    raise FlagbenchError(
        f"kubectl could not apply the job: {reason}",
        remedy="`kubectl config current-context` names the cluster that was asked",
        code=ExitCode.ENGINE,
    )
