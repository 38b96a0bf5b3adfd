"""Carries out a trial of honest_trials.py, natively or in a container, under its condition."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .honest_trials import BUSY, DOCKER, NAMESPACE, NATIVE, ONE_CORE, QUOTA, STOPPED, Trial

ROOT = Path(__file__).resolve().parents[2]
PATHS = (str(ROOT / "builder"), str(ROOT / "entrypoints"))
LIMIT = 1800
"""Seconds of a command; half a processor may train several ranks."""
STOPPED_SECONDS = 3.0
MEASURED = (b"flagbench: train", b"flagbench: infer")
PREFIXES = {
    ONE_CORE: ("taskset", "-c", "0"),
    # Clocks that begin elsewhere, as in a container that was moved to another machine.
    NAMESPACE: ("unshare", "--time", "--monotonic", "100000", "--boottime", "100000", "--fork"),
}
DOCKER_OPTIONS = {ONE_CORE: ("--cpuset-cpus", "0"), QUOTA: ("--cpus", "0.5")}


def carry_out(trial: Trial, folder: Path, data: Path | None, image: str | None, python: str | None) -> list[int]:
    """The exit codes of the trial's commands, whose records are then below `folder`.

    Args:
        data: what --data names.
        python: the interpreter of native runs, without the host tool; None for this one, with it.
    """
    folder.mkdir(parents=True)
    if trial.way == DOCKER:
        commands = [_docker_run(trial, folder, data, image)]
    elif trial.way == NATIVE and python is not None and trial.repeat == 1:
        commands = [_image_side(trial, folder, data, python)]
    else:
        commands = [_run(trial, folder, data, image)]
    if trial.resumed:
        commands.append([*commands[0], "--resume", str(folder / "out" / "checkpoints" / trial.name)])
    return [_wait(trial, folder, command) for command in commands]


def records(folder: Path) -> list[Path]:
    """The files of a trial's records: those of its store, and what a container printed if it had none."""
    stored = sorted((folder / "store" / "results" / "v1").rglob("*.json"), key=lambda path: path.name)
    printed = folder / "printed.json"
    return stored or [path for path in [printed] if path.is_file() and path.stat().st_size]


def _run(trial: Trial, folder: Path, data: Path | None, image: str | None) -> list[str]:
    command = [*PREFIXES.get(trial.condition, ()), sys.executable, "-m", "flagbench", "run", f"{trial.case}:cpu"]
    command += ["--preset", "tiny", "--store", str(folder / "store"), *trial.words, "--json"]
    command += ["--via", "native"] if trial.way == NATIVE else ["--via", "docker", "--image", str(image)]
    command += (
        ["--nonce", trial.name, "--repeat", str(trial.repeat)] if trial.repeat > 1 else ["--run-id", trial.name]
    )
    command += [] if data is None else ["--data", str(data)]
    return [*command, "--out", str(folder / "out")] if trial.resumed else command


def _image_side(trial: Trial, folder: Path, data: Path | None, python: str) -> list[str]:
    command = [*PREFIXES.get(trial.condition, ()), python, "-m", "flagbench_cases", trial.case, "--preset", "tiny"]
    command += ["--run-id", trial.name, "--store", f"file://{folder / 'store'}", *trial.words]
    command += [] if data is None else ["--data", str(data)]
    return [*command, "--out", str(folder / "out")] if trial.resumed else command


def _docker_run(trial: Trial, folder: Path, data: Path | None, image: str | None) -> list[str]:
    """Every second one stores its record and a bundle itself."""
    options = [word for name, value in trial.environment for word in ("--env", f"{name}={value}")]
    options += DOCKER_OPTIONS.get(trial.condition, ())
    words = ["--preset", "tiny", "--run-id", trial.name, *trial.words]
    if data is not None:
        options += ["--volume", f"{data}:/data:ro"]
    if trial.number % 2:
        (folder / "store").mkdir()
        options += ["--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{folder / 'store'}:/store"]
        words += ["--store", "file:///store"]
    label = f"dev.flagbench.run={trial.name}"
    return ["docker", "run", "--rm", "--label", label, *options, str(image), *words]


def _wait(trial: Trial, folder: Path, command: Sequence[str]) -> int:
    """The exit code of a command; its output is added to that of the one before."""
    own = {"PYTHONPATH": os.pathsep.join(PATHS), "FLAGBENCH_PROGRESS": "lines"}
    environment = {**os.environ, **own, **dict(trial.environment)}
    with (
        open(folder / "printed.json", "wb") as printed,
        open(folder / "log", "ab") as log,
        _burners(trial.condition == BUSY),
        subprocess.Popen(command, env=environment, stdout=printed, stderr=log, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            if trial.condition == STOPPED:
                _stop(trial, process, folder / "log")
            return process.wait(LIMIT)
        except BaseException:
            process.terminate()
            raise


@contextlib.contextmanager
def _burners(wanted: bool) -> Iterator[None]:
    """A process for each core that does nothing but compute."""
    command = [sys.executable, "-c", "while True: pass"]
    made = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)] if wanted else []
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def _stop(trial: Trial, process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop a rank, or the container, for a while as soon as it trains."""
    import psutil

    while process.poll() is None and not any(phase in log.read_bytes() for phase in MEASURED):
        time.sleep(0.05)
    if process.poll() is not None:
        return
    if trial.way == NATIVE:
        ranks = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "flagbench_cases.rank.worker" in child.cmdline()
        ]
        ranks[0].send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        ranks[0].send_signal(signal.SIGCONT)
        return
    label = f"label=dev.flagbench.run={trial.name}"
    found = subprocess.run(["docker", "ps", "-q", "--filter", label], capture_output=True, text=True, check=True)
    for container in found.stdout.split():
        subprocess.run(["docker", "pause", container], check=True, stdout=subprocess.DEVNULL)
        time.sleep(STOPPED_SECONDS)
        subprocess.run(["docker", "unpause", container], check=True, stdout=subprocess.DEVNULL)


def images_by_case(images: Sequence[str]) -> Mapping[str, str]:
    """The images, each by the case that its label names. Raises KeyError if one is not of flagbench."""
    found = {}
    for image in images:
        shown = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True)
        found[json.loads(shown.stdout)[0]["Config"]["Labels"]["dev.flagbench.case"]] = image
    return found


def data_folders(root: Path) -> Mapping[str, Path]:
    """Data folders in every format that the tiny models can read, by the names of honest_trials.DATA; made once."""
    cases = ROOT / "entrypoints" / "flagbench_cases" / "cases"
    folders = {name: root / name for name in ("tsv", "npz", "prepared")}
    if not folders["tsv"].is_dir():
        _write_tsv(cases / "distilbert" / "tiny", folders["tsv"])
    if not folders["npz"].is_dir():
        _write_npz(folders["tsv"], folders["npz"])
    if not folders["prepared"].is_dir():
        words = [
            "prepare",
            "llama2-70b",
            "--data",
            str(cases / "llama2_70b" / "tiny"),
            "-o",
            str(folders["prepared"]),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
        command = [sys.executable, "-m", "flagbench", *words]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folders


def _write_tsv(tiny: Path, folder: Path) -> None:
    """GLUE's layout."""
    (folder / "SST-2").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(tiny / name, folder / "SST-2" / name)
    shutil.copy(tiny / "vocab.txt", folder / "vocab.txt")


def _write_npz(tsv: Path, folder: Path) -> None:
    """FlagPerf's archive, of the same sentences."""
    import numpy as np

    from flagbench_cases.cases.distilbert import data as sst2
    from flagbench_cases.shared.config import load_case

    config = load_case("distilbert")
    model = {**config["presets"]["reference"]["model"], **config["presets"]["tiny"]["model"]}
    length = config["presets"]["tiny"]["data"]["sequence_length"]
    (folder / "dataset").mkdir(parents=True)
    for part, found in zip(("train", "eval"), sst2.read_folder(str(tsv), None, length, model)):
        mask = np.arange(length) < found.lengths[:, None]
        arrays = {"input_ids": found.input_ids, "attention_mask": mask, "label": found.labels}
        wide = {name: array.astype(np.int64) for name, array in arrays.items()}
        np.savez(folder / "dataset" / f"{part}_dataset.npz", **wide)
