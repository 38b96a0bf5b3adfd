"""The fixture of tests that submit jobs to Slurm: the nodes that `.ci/slurm` starts on this machine.

A test module asks for it with `pytest_plugins = ["slurm_cluster"]`. Every job has its nodes for itself, so jobs of
tests that run at the same time wait for each other.
"""

import json
import os
import subprocess
import sysconfig
import tarfile
from typing import NamedTuple

import pytest

from flagbench.records.store import open_store
from running import ROOT, need, wait_until

SECONDS = 300
"""The longest time for a job, waiting for its nodes included."""
POLL_SECONDS = 0.3
"""The time between two questions to Slurm."""


class End(NamedTuple):
    """How a job ended: its state, the exit code of its script, and the number of times that it was started again."""

    state: str
    code: int
    restarts: int


class Job:
    """A job of Slurm. Its log is in `folder`, from where it was submitted."""

    def __init__(self, number, folder):
        self.number = number
        self.folder = folder

    @property
    def log(self):
        """What it has printed; empty before it starts."""
        return "".join(path.read_text() for path in self.folder.glob("*-%s.out" % self.number))

    @property
    def nodes(self):
        """The names of its nodes, node 0 first."""
        return _slurm("scontrol", "show", "hostnames", self._column("NodeList")).split()

    def wait_for_training(self):
        """Wait until it trains."""
        wait_until(lambda: "flagbench: train" in self.log or self._has_ended(), SECONDS, POLL_SECONDS)
        assert not self._has_ended(), self.log

    def cancel(self):
        """End it, if it has not ended."""
        _slurm("scancel", self.number)

    def set_time_limit(self, minutes):
        """Change its limit, which counts from its start."""
        _slurm("scontrol", "update", "JobId=%s" % self.number, "TimeLimit=%d" % minutes)

    def wait(self):
        """Wait for its end, and tell how it ended."""
        wait_until(self._has_ended, SECONDS, POLL_SECONDS)
        code = os.waitstatus_to_exitcode(int(self._column("exit_code")))
        return End(self._column("State"), code, int(self._column("RestartCnt")))

    def _has_ended(self):
        return self._column("State") not in ("PENDING", "RUNNING", "COMPLETING")

    def _column(self, name):
        options = ("--jobs=%s" % self.number, "--states=all", "--noheader", "--Format=%s" % name)
        return _slurm("squeue", *options).strip()


class Cluster:
    """The nodes, with the store and the jobs of one test."""

    def __init__(self, folder):
        self.folder = folder
        self.store = folder / "store"
        self.jobs = []
        self.killed = []
        self.drained = []

    def script(self, *words):
        """What `flagbench job` prints for these words, with the store of the test."""
        return self.run("flagbench", "job", *words, "--for=slurm", "--store=%s" % self.store).stdout

    def run(self, *command, **options):
        """A command in the folder of the test, ended."""
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, **options)

    def submit(self, script):
        """The job of a script for `sbatch`."""
        (job,) = self._submit_with("sbatch", script)
        return job

    def submit_to_each_node(self, script):
        """The jobs of a script for `sh`, in the order of its nodes."""
        return self._submit_with("sh", script)

    def _submit_with(self, program, script):
        submitted = self.run(program, input=script)
        assert submitted.stdout, submitted.stderr
        jobs = [Job(line.split()[-1], self.folder) for line in submitted.stdout.splitlines()]
        self.jobs += jobs
        return jobs

    def records(self):
        """The records in the store, each by the name of its node."""
        store = open_store(str(self.store))
        records = [json.loads(store.read(stored)) for stored in store.list_records()]
        return {record["system"]["host"]: record for record in records}

    def certificate(self, node, job):
        """The certificate of a node that a job has accepted, from its bundle, which is whole."""
        name = "certificates/%s-%s.tar.gz" % (node, job.number)
        verified = self.run("flagbench", "bundle", "verify", name)
        assert verified.returncode == 0, verified.stderr + job.log
        with tarfile.open(self.folder / name) as bundle:
            return json.load(bundle.extractfile("certificate.json"))

    def drain(self, node, commands):
        """Run commands that drain a node, until the end of the test."""
        self.drained.append(node)
        _slurm("sh", "-c", commands)

    def reason_of(self, node):
        """Why a node is drained."""
        return _sinfo(node, "%E")

    def kill(self, node):
        """End a node at once, with all that runs on it."""
        self.killed.append(node)
        _ci("kill", node)

    def restart_killed(self):
        """Start the nodes again that were killed, and wait until Slurm uses them."""
        while self.killed:
            node = self.killed.pop()
            _ci("restart", node)
            wait_until(lambda node=node: "down" not in _sinfo(node, "%T"), SECONDS, POLL_SECONDS)

    def clean(self):
        """Leave no job of the test, and the nodes as they were."""
        for job in self.jobs:
            job.cancel()
        self.restart_killed()
        for node in self.drained:
            _slurm("scontrol", "update", "NodeName=%s" % node, "State=RESUME")


def _slurm(*command):
    """What a command of Slurm prints."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _ci(what, node):
    command = [os.path.join(ROOT, ".ci", "slurm"), what, os.environ["FLAGBENCH_TEST_SLURM"], node]
    subprocess.run(command, check=True)


def _sinfo(node, column):
    return _slurm("sinfo", "--noheader", "--nodes=%s" % node, "--format=%s" % column).strip()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The nodes; without them a test is skipped, in CI it fails."""
    if "FLAGBENCH_TEST_WITHOUT_SLURM" in os.environ:
        pytest.skip("FLAGBENCH_TEST_WITHOUT_SLURM is set")
    need("FLAGBENCH_TEST_SLURM" in os.environ, "a Slurm: `.ci/slurm start DIR` and DIR/env")
    # Jobs get the environment from which they are submitted.
    monkeypatch.setenv("PATH", os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])))
    nodes = Cluster(tmp_path)
    yield nodes
    nodes.clean()
