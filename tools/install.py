"""Installs what `make demo` (cases) or `make test` (dev) needs into a virtual environment; started by tools/install.

Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "images" / "rendered" / "cpu" / "requirements.txt"
LOCK_PYTHON = (3, 11)
"""The Python that the lock of the cpu stack is made for."""
PROBE_SECONDS = 4
"""How long an index may take to answer."""


def main(arguments: list[str]) -> int:
    """Install; the exit code: 0, 2 for usage, else pip's own."""
    if len(arguments) != 2 or arguments[1] not in ("cases", "dev"):
        print("usage: tools/install VENV cases|dev", file=sys.stderr)
        return 2
    venv, what = Path(arguments[0]), arguments[1]
    python = venv / "bin" / "python"
    wanted = os.environ.get("PYTHON")
    if Path(sys.prefix) != venv.resolve():
        make_venv(venv)
    elif wanted and minor_version(wanted) not in (None, sys.version_info[:2]):
        say(f"error: {venv} holds Python {sys.version.split()[0]}, not {wanted}")
        say(f"fix: remove {venv} (`make clean`), or leave PYTHON out")
        return 2
    pins = venv / "constraints.txt"
    lines = constraints(LOCK.read_text(encoding="utf-8"), minor_version(str(python)))
    pins.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if what == "dev" and shutil.which("cc") is None and shutil.which("gcc") is None:
        say("note: no C compiler found, so tests that need one are skipped (Debian: apt-get install gcc libc6-dev)")
    for step in steps(what, python, pins):
        code = run_pip(python, step)
        if code:
            say(f"error: pip failed with exit code {code}; its output is above")
            say(f"fix: fix that and run the same command again: what is already in {venv} is kept")
            return code
    say(f"{venv} is ready")
    return 0


def say(text: str) -> None:
    """Print a line of this script between those of pip."""
    print(f"flagbench: {text}", flush=True)


def steps(what: str, python: Path, pins: Path) -> list[list[str]]:
    """The arguments of each `pip install`, in order."""
    extra = "[cases]" if what == "cases" else "[cases,dev]"
    # Every package but DeepSpeed has wheels, so nothing is compiled.
    common = ["-c", str(pins), *torch_index(python)]
    first = [*common, "--only-binary", ":all:", "-e", f"{ROOT}{extra}"]
    if what == "cases":
        return [first]
    locks = ROOT / "tests" / "locks"
    return [
        [*first, "-r", str(locks / "oracles.txt")],
        ["-c", str(pins), "--no-build-isolation", "-r", str(locks / "deepspeed.txt")],
    ]


def torch_index(python: Path) -> list[str]:
    """pip's options for PyTorch's index: none where torch is there, or the index is left out or does not answer."""
    index = os.environ.get("TORCH_INDEX", "").rstrip("/")
    if not index or has_torch(python):
        return []
    say(f"asking whether {index} answers, which has torch for processors")
    if has_versions_of_torch(python, index):
        return ["--extra-index-url", index]
    say(f"{index} does not answer, so torch comes from where pip is configured to look.")
    say("From PyPI that is torch with CUDA and its libraries: some 3 GB to download and 7 GB on disk, not 0.2 GB.")
    say(f"To avoid that, press Ctrl-C and run again with TORCH_INDEX=URL of a mirror of {index},")
    say(f"or install a torch for processors first, which is kept: {python} -m pip install FILE.whl")
    return []


def has_torch(python: Path) -> bool:
    """Whether any torch is installed."""
    question = "import importlib.metadata as m; m.version('torch')"
    return subprocess.run([python, "-I", "-c", question], stderr=subprocess.DEVNULL, check=False).returncode == 0


def has_versions_of_torch(python: Path, index: str) -> bool:
    """Whether an index answers pip, whose configuration may have a proxy, certificates and credentials for it.

    pip would ask an index that does not answer for every package, several times.
    """
    alone = {"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": index, "PIP_FIND_LINKS": os.devnull}
    command = [str(python), "-m", "pip", "index", "versions", "torch", "--no-input", "--retries=0"]
    command.append(f"--timeout={PROBE_SECONDS}")
    return subprocess.run(command, env={**os.environ, **alone}, capture_output=True, check=False).returncode == 0


def make_venv(venv: Path) -> None:
    """A new environment, in place of one that does not work."""
    say(f"{venv} is made with Python {sys.version.split()[0]}, {sys.executable}")
    clear = ["--clear"] if (venv / "pyvenv.cfg").exists() else []
    subprocess.run([sys.executable, "-m", "venv", *clear, str(venv)], check=True)


def minor_version(python: str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter; None for one that does not start."""
    try:
        answer = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True)
        major, minor = map(int, answer.split())
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return major, minor


BOUND_BY_HOST = frozenset(["typer"])
"""Packages that pyproject.toml bounds for the host side; the lock has them because transformers needs them."""


def constraints(lock: str, python: tuple[int, int] | None) -> list[str]:
    """The lock's versions as constraints of pip, without hashes and build labels like +cpu.

    On the lock's own Python these versions; on another no newer ones, because not all have files for it.
    """
    relation = "==" if python == LOCK_PYTHON else "<="
    pins = re.findall(r"^(?:# unresolved: )?([a-z0-9-]+)==([^ +\n]+)", lock, flags=re.MULTILINE)
    return [f"{name}{relation}{version}" for name, version in pins if name not in BOUND_BY_HOST]


def run_pip(python: Path, arguments: list[str]) -> int:
    """Run one `pip install`. Returns its exit code."""
    # A few hundred of a framework's thousands of modules are imported, and compiled then. Where Python may not keep
    # the result it would compile them in every process, so there all of them are compiled now.
    compiled = "--compile" if sys.dont_write_bytecode else "--no-compile"
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", compiled, *arguments]
    return subprocess.call(command, env={**os.environ, "DS_BUILD_OPS": "0"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
