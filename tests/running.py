"""Starting a case as its own process, watching its spool, and judging how it ended."""

import contextlib
import functools
import glob
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.spool import Heartbeat, SpoolReader
from leftovers import alive as alive
from warmup import warm

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENTRYPOINTS = os.path.join(ROOT, "entrypoints")
ENDLESS = ["--preset", "tiny", "--data", "synthetic", "--steps", "1000000"]


class Ended(NamedTuple):
    """A finished run: its exit code, the lines on stdout, stderr, and the record where there is one."""

    code: int
    lines: List[str]
    stderr: str

    @property
    def record(self) -> Dict[str, Any]:
        """The one record, which fits the schema; anything else on stdout is a failure."""
        assert len(self.lines) == 1, "stdout has %d lines:\n%s\n%s" % (len(self.lines), self.lines, self.stderr)
        record = json.loads(self.lines[0])
        _schema().validate(record)
        return record

    @property
    def status(self) -> Dict[str, Any]:
        """The record's status."""
        return self.record["status"]

    def failed(self, code: int, phase: Optional[str], *words: str) -> Dict[str, Any]:
        """The record of a run that failed, or was interrupted (7), in that phase, or in any if that is None: the
        reason has these words, there is a remedy, and no process of a rank is left."""
        record, status = self.record, self.status
        assert (self.code, status["exit_code"]) == (code, code), (status, self.stderr)
        assert status["state"] == ("interrupted" if code == 7 else "failed"), status
        assert phase in (None, status["phase"]), status
        assert all(word in status["reason"] for word in words), status
        assert status["remedy"], status
        assert "error: %s" % status["reason"] in self.stderr
        assert not any(alive(rank["pid"]) for rank in record["ranks"])
        return record

    def ok(self, case: str) -> Dict[str, Any]:
        """The record of a run that ended well: it has every condition of its case, all of its checks passed, and the
        host side finds nothing wrong with it."""
        record = self.record
        assert (self.code, record["case"], record["status"]["state"]) == (0, case, "ok"), (record, self.stderr)
        assert [check for check in record["quality"]["checks"] if not check["ok"]] == []
        groups = load_case(case)["condition_groups"].values()
        assert {"seed", *record["conditions"]} == {"seed", *(name for names in groups for name in names)}
        assert_agrees(record)
        return record


@functools.lru_cache(maxsize=None)
def _schema() -> Any:
    """The schema of a record, as a validator."""
    import jsonschema

    with open(os.path.join(ROOT, "manifests", "schema", "record-v1.json"), encoding="utf-8") as file:
        return jsonschema.Draft202012Validator(json.load(file))


def assert_agrees(record: Dict[str, Any]) -> None:
    """The host side finds nothing wrong with a record: its numbers follow from its evidence, its conditions from its
    configuration, nothing in it is impossible, and it has every check that applies. Only where the host side runs."""
    if importlib.util.find_spec("flagbench") is None or sys.version_info < (3, 10):
        return
    from catalogs import CATALOG
    from flagbench.records.read import read_record
    from flagbench.verdict.recompute import recompute
    from flagbench.verdict.rules import check_record

    case = CATALOG.cases[record["case"]]
    subject = recompute(read_record(json.dumps(record).encode("utf-8")), case)
    assert (check_record(subject), subject.not_compared) == ((), ())
    assert set(case.conditions) <= set(record["conditions"])


class CaseRun:
    """One process of `python -m flagbench_cases`, of distilbert if no `case` is given, its spool under `folder`."""

    def __init__(self, folder: str, arguments: List[str], isolated: bool = True, **options: Any) -> None:
        """`isolated`: its processes share nothing with those of other runs (see warmup.py)."""
        self.folder = str(folder)
        env = dict(os.environ, PYTHONPATH=ENTRYPOINTS, TMPDIR=self.folder)
        env.pop("FLAGBENCH_STACK", None)
        env.update(options.pop("env", {}))
        if not isolated:
            env.update(warm(env["PYTHONPATH"]))
        command = options.pop("command", [sys.executable, "-m", "flagbench_cases", options.pop("case", "distilbert")])
        self.process = subprocess.Popen(
            command + arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def readers(self) -> List[SpoolReader]:
        """The ranks of the newest spool."""
        folders = sorted(glob.glob(os.path.join(self.folder, "flagbench-*")), key=os.path.getmtime)
        if not folders:
            return []
        ranks = (int(name[5:10]) for name in os.listdir(folders[-1]) if name.endswith(".facts"))
        return [SpoolReader(folders[-1], rank) for rank in sorted(ranks)]

    def pids(self) -> List[int]:
        """The processes of the ranks that have begun, in rank order."""
        return [f["pid"] for reader in self.readers() for f in reader.facts() if f["kind"] == "rank"]

    def wait_for_steps(self, ranks: int, steps: int = 3) -> None:
        """Until every rank has trained a little."""

        def trained() -> bool:
            states: List[Optional[Heartbeat]] = [reader.progress() for reader in self.readers()]
            return len(states) == ranks and all(s is not None and s.steps >= steps for s in states)

        wait_until(lambda: trained() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.process.communicate()

    def wait(self, seconds: float = 180) -> Ended:
        """The end of the run."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return Ended(self.process.returncode, out.splitlines(), err)


def run_case(folder: str, *arguments: str, isolated: bool = False, **options: Any) -> Ended:
    """Run to the end."""
    return CaseRun(folder, list(arguments), isolated=isolated, **options).wait()


# Below those that the kernel gives to sockets that ask for any (32768 and up), so that it gives them to nobody else.
_PORTS = range(20000, 32000)
_tried = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port for a process that listens on it some time later, while other workers' tests look for ports, too."""
    while True:
        port = _PORTS[next(_tried) % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.02) -> None:
    """Poll until the condition holds, every `pause` seconds; fail loudly at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited %.0f s in vain" % seconds
        time.sleep(pause)


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal, by the kernel's mask."""
    with open("/proc/%d/status" % pid) as file:
        mask = next(line.split()[1] for line in file if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


LIMITS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}
"""The setting of each controller in version 1 and in version 2 of control groups."""


@contextlib.contextmanager
def control_group(controller: str, limit: int) -> Iterator[List[str]]:
    """A control group of its own; gives what a command begins with to run in it."""
    first = os.path.isdir("/sys/fs/cgroup/%s" % controller)
    root = "/sys/fs/cgroup/%s" % controller if first else "/sys/fs/cgroup"
    need(os.geteuid() == 0 and os.access(root, os.W_OK), "root and writable control groups")
    folder = os.path.join(root, "flagbench-test-%s" % uuid.uuid4().hex[:8])
    os.mkdir(folder)
    with open(os.path.join(folder, LIMITS[controller][0 if first else 1]), "w") as file:
        file.write(str(limit))
    # The shell joins the group before it becomes the command.
    try:
        yield ["bash", "-c", 'echo $$ > "%s/cgroup.procs"; exec "$0" "$@"' % folder]
    finally:
        wait_until(lambda: not open(os.path.join(folder, "cgroup.procs")).read(), 10)
        os.rmdir(folder)


def need(there: bool, what: str) -> None:
    """Skip where this machine lacks a part that a test runs for real; in CI, which installs it, that is a failure."""
    if not there:
        import pytest

        (pytest.fail if os.environ.get("CI") else pytest.skip)("this test needs %s" % what)


def need_imports(case: str) -> None:
    """What a case imports beside torch, by its manifest."""
    from flagbench_cases.shared.manifests import load_case

    for name in load_case(case).get("imports", ()):
        need(importlib.util.find_spec(name) is not None, name)


def need_megatron() -> None:
    """Megatron-Core, whichever release this Python has."""
    need(importlib.util.find_spec("megatron") is not None, "Megatron-Core")
