"""`flagbench job --for slurm`: what its script asks for and starts, with stand-ins for srun and scontrol."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flagbench_core import __version__

Flagbench = Callable[..., Any]
Submit = Callable[..., list[list[str]]]
JOB = "job distilbert:a100 --for slurm"
HOSTILE = [
    "$(touch hacked)",
    "`touch hacked`",
    "'; touch hacked; '",
    '"; touch hacked; "',
    "${HOME}",
    "a b",
    "*",
    "#",
    "ä",
]


class Started(NamedTuple):
    """What a script gave to srun, and how it ended."""

    words: list[str]
    environment: dict[str, str]
    code: int


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., Started]:
    """`cluster(script, **variables)`: runs a batch script as Slurm would, in an empty folder; srun ends with 4."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text('#!/bin/sh\n[ "$*" = "show hostnames gpu[1-2]" ] && echo gpu1 && echo gpu2\n')
    (programs / "srun").write_text(
        f'#!/bin/sh\nprintf "%s\\0" "$@" >{tmp_path}/words\nenv -0 >{tmp_path}/env\nexit 4\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()

    def run(script: str, **variables: str) -> Started:
        done = subprocess.run(
            ["/bin/bash", "-s"],
            input=script,
            text=True,
            check=False,
            cwd=work,
            env={
                "PATH": f"{programs}:/usr/bin:/bin",
                "SLURM_JOB_ID": "123",
                "SLURM_JOB_NAME": "bench",
                "SLURM_JOB_NODELIST": "gpu[1-2]",
                "SLURMD_NODENAME": "gpu1",
                **variables,
            },
        )
        assert not (work / "hacked").exists()
        lines = (tmp_path / "env").read_text().split("\0")[:-1]
        environment = dict(line.split("=", 1) for line in lines)
        return Started((tmp_path / "words").read_text().split("\0")[:-1], environment, done.returncode)

    return run


def directives(script: str) -> set[str]:
    """The options of sbatch: those before the first command."""
    head = script.partition("set -u")[0]
    return {line.removeprefix("#SBATCH ") for line in head.splitlines() if line.startswith("#SBATCH")}


def test_one_run_over_two_nodes(flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    ended = flagbench(
        f"{JOB} --nodes 2 --gpus 8 --steps 5 --max-minutes 50 --store /shared/nodes --env NCCL_DEBUG=INFO"
    )
    assert (ended.code, ended.err) == (0, "")
    assert directives(ended.out) == {
        *("--job-name=flagbench-distilbert-a100-cuda11.6", "--output=%x-%j.out", "--nodes=2", "--ntasks-per-node=1"),
        *("--gpus-per-node=8", "--exclusive", "--mem=0", "--time=80", "--signal=TERM@120", "--no-requeue"),
        "--open-mode=append",
    }
    started = cluster(ended.out)
    assert started.words == [
        *("--cpu-bind=none", "--kill-on-bad-exit=1", "--label"),
        *("flagbench", "run", "distilbert:a100-cuda11.6", "--via=native"),
        *(
            "--nodes=2",
            "--gpus=8",
            "--steps=5",
            "--max-minutes=50.0",
            "--env=NCCL_DEBUG=INFO",
            "--store=/shared/nodes",
        ),
        *("--master=gpu1:20123", "--run-id=slurm-123"),
    ]
    assert started.code == 4


def test_one_node_of_a_processor(flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    script = flagbench(
        "job distilbert:cpu --for slurm --gpus 2 --preset tiny --run-id nightly --weights models/w"
    ).out
    assert not any(line.startswith("--gpus") for line in directives(script))
    assert cluster(script).words == [
        *("--cpu-bind=none", "--kill-on-bad-exit=1", "flagbench", "run", "distilbert:cpu", "--via=native"),
        *("--nodes=1", "--gpus=2", "--preset=tiny", "--max-minutes=210", "--yes", "--weights=models/w"),
        "--run-id=nightly-123",
    ]


def test_an_image_from_a_registry_is_run_by_pyxis(flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    ended = flagbench(f"{JOB} --nodes 2 --registry r.io:5000/lab --data /sets/sst2 --env A=1")
    started = cluster(ended.out)
    (folder,) = [word for word in started.words if word.startswith("--container-mounts=")]
    assert folder.endswith("/work/bench-123:/out,/sets/sst2:/data:ro")
    assert f"--container-image=r.io:5000#lab/flagbench/distilbert:a100-cuda11.6-{__version__}" in started.words
    program = started.words.index("/opt/conda/bin/python3")
    assert started.words[program + 1 : program + 6] == ["-I", "-u", "-m", "flagbench_cases", "distilbert"]
    assert {"--data=/data", "--out=/out", "--master=gpu1:20123"} <= {*started.words[program:]}
    assert (started.environment["A"], started.environment["FLAGBENCH_ENV"]) == ("1", "A")


def test_a_digest_is_a_tag_for_pyxis(flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    digest = "sha256:" + "a" * 64
    script = flagbench(f"{JOB} --image r.io/lab/x:1@{digest}").out
    assert f"--container-image=r.io#lab/x:{digest}" in cluster(script).words


def test_a_sif_file_is_run_by_apptainer(flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    ended = flagbench(f"{JOB} --image images/distilbert.sif")
    assert ended.err == ""
    words = cluster(ended.out).words
    place = words.index("apptainer")
    assert (words[place + 1], words[place + 3 : place + 5]) == ("exec", ["--nv", "images/distilbert.sif"])


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("option", ["--data", "--weights", "--store", "--set", "--env"])
def test_a_value_is_one_word(option: str, value: str, flagbench: Flagbench, cluster: Callable[..., Started]) -> None:
    typed = {"--set": f"dropout={value}", "--env": f"A={value}"}.get(option, value)
    ended = flagbench("job distilbert:cpu --for slurm", f"{option}={typed}")
    if ended.code == 0:
        assert f"{option}={typed}" in cluster(ended.out).words
    else:
        assert (option, ended.code) == ("--set", 2)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--queue fast", "--queue"),
        ("--json", "--json"),
        ("--name a%j", "--name"),
        ("--name $(id)", "--name"),
        (f"--run-id {118 * 'r'}", "--run-id"),  # with the id of a job: up to 129 characters
        ("--name accept --nodes 0", "--nodes"),  # not `job accept`
        ("--image x:latest", "--image"),
        ("--image x.sif --registry r.io", "--registry"),
        ("--image r.io/x:1 --store /shared", "--store"),
        ("--store s3://b", "--store"),
        ("--env AWS_SECRET_ACCESS_KEY=x", "--env"),
    ],
)
def test_refused_by_the_name_of_the_option(words: str, named: str, flagbench: Flagbench) -> None:
    code, out, err = flagbench(f"{JOB} {words}")
    assert (code, out) == (2, "")
    assert named in err


def test_weights_of_the_nodes_are_for_slurm_alone(flagbench: Flagbench) -> None:
    ended = flagbench("job distilbert:a100 --for kubernetes --weights /w")
    assert (ended.code, "--weights" in ended.err) == (2, True)


@pytest.fixture
def submitted(tmp_path: Path) -> Submit:
    """`submitted(script, *words)`: runs a script as `sh -s -- WORDS`; returns the words of each sbatch.

    What sbatch read is in the files `job-N`. It refuses a node called `away`.
    """
    programs = tmp_path / "sbatch"
    programs.mkdir()
    sbatch = programs / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\nn=$(ls {tmp_path}/words-* 2>/dev/null | wc -l)\nprintf "%s\\0" "$@" >{tmp_path}/words-$n\n'
        f'cat >{tmp_path}/job-$n\n[ "$1" != --nodelist=away ]\n'
    )
    sbatch.chmod(0o755)

    def run(script: str, *words: str, code: int = 0) -> list[list[str]]:
        command = ["/bin/sh", "-s", "--", *words]
        path = f"{programs}:/usr/bin:/bin"
        done = subprocess.run(command, input=script, text=True, check=False, env={"PATH": path})
        assert done.returncode == code
        return [path.read_text().split("\0")[:-1] for path in sorted(tmp_path.glob("words-*"))]

    return run


def test_a_job_for_each_node(
    tmp_path: Path, flagbench: Flagbench, submitted: Submit, cluster: Callable[..., Started]
) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("gpu-1\naway\nnode/gpu-1\ngpu-2.example.com\n")
    ended = flagbench(f"{JOB} --each-node {nodes} --gpus 8 --run-id nightly")
    assert (ended.code, ended.err) == (0, "")
    name = "flagbench-distilbert-a100-cuda11.6"
    # A node that Slurm does not have keeps no other from its job.
    assert submitted(ended.out, "--partition=new ones", code=1) == [
        [f"--nodelist={node}", f"--job-name={name}-{node}", "--partition=new ones"]
        for node in ("gpu-1", "away", "gpu-2.example.com")
    ]
    jobs = [(tmp_path / f"job-{number}").read_text() for number in range(3)]
    assert jobs[0] == jobs[1] == jobs[2]
    assert {"--nodes=1", "--gpus-per-node=8"} <= directives(jobs[0])
    assert "--run-id=nightly-123" in cluster(jobs[0]).words


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
@pytest.mark.parametrize("name", ["gpu[1-2]", "$(id)", "-w", "ALL", "a_b", "a;b", "'", ""])
def test_names_of_nodes_are_names(tmp_path: Path, scheduler: str, name: str, flagbench: Flagbench) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text(f"{name}\n")
    code, out, err = flagbench(f"job distilbert:a100 --for {scheduler} --each-node {nodes}")
    assert (code, out, "--each-node" in err) == (2, "", True)


def test_each_node_is_accepted(
    tmp_path: Path, flagbench: Flagbench, submitted: Submit, cluster: Callable[..., Started]
) -> None:
    (tmp_path / "nodes.txt").write_text("gpu-1\ngpu-2\n")
    accept = f"job --for slurm accept --each-node {tmp_path}/nodes.txt"
    ended = flagbench(f"{accept} --gpus 8 --minutes 12.5 --soak 60 --store s3://bench/nodes", "--out", "$(id) 'x'")
    assert (ended.code, ended.err) == (0, "")
    assert [words[1] for words in submitted(ended.out)] == [f"--job-name=flagbench-accept-gpu-{n}" for n in (1, 2)]
    job = (tmp_path / "job-0").read_text()
    assert {"--gpus-per-node=8", "--time=103", "--exclusive", "--signal=TERM@120"} <= directives(job)
    started = cluster(job)
    assert started.words == [
        *("--cpu-bind=none", "flagbench", "accept", "--via=native"),
        *("--minutes=12.5", "--gpus=8", "--soak=60", "--store=s3://bench/nodes", "--out=$(id) 'x'/gpu1-123.tar.gz"),
    ]
    assert started.code == 4
    on_processors = flagbench(f"{accept} --gpus 4 --case distilbert:cpu")
    assert ("--gpus-per-node" in on_processors.out, on_processors.err) == (False, "")
    without_devices = flagbench(accept)
    assert "--gpus-per-node" not in without_devices.out
    assert "--gpus" in without_devices.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--for kubernetes", "job roofs:STACK"),
        ("--for slurm --minutes 0", "--minutes"),
        ("--for slurm --case distilbret", "distilbert"),
        ("--for slurm --case distilbert:h10", "h100"),
        ("--for slurm --nodes 2", "--nodes"),
        ("--for slurm --store s3://b", "--store"),
        ("--for slurm --store s3://AKIA:hunter2@bucket/x", "--store"),
    ],
)
def test_what_cannot_be_accepted(tmp_path: Path, words: str, named: str, flagbench: Flagbench) -> None:
    (tmp_path / "nodes.txt").write_text("gpu-1\n")
    code, out, err = flagbench(f"job accept --each-node {tmp_path}/nodes.txt {words}")
    assert (code, out, named in err) == (2, "", True)
