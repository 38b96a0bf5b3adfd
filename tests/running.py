"""Starting a case as its own process, watching its spool, and reading what it printed."""

import glob
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from flagbench_cases.shared.spool import Progress, SpoolReader
from leftovers import alive as alive
from warmup import warm

ENTRYPOINTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "entrypoints")
ENDLESS = ["--preset", "tiny", "--data", "synthetic", "--steps", "1000000"]


class Ended(NamedTuple):
    """A finished run: its exit code, the lines on stdout, stderr, and the record where there is one."""

    code: int
    lines: List[str]
    stderr: str

    @property
    def record(self) -> Dict[str, Any]:
        """The one record; anything else on stdout is a failure."""
        assert len(self.lines) == 1, "stdout has %d lines:\n%s\n%s" % (len(self.lines), self.lines, self.stderr)
        return json.loads(self.lines[0])

    @property
    def status(self) -> Dict[str, Any]:
        """The record's status."""
        return self.record["status"]


def assert_agrees(record: Dict[str, Any]) -> None:
    """The host side finds nothing wrong with a record: its numbers follow from its evidence, its conditions from its
    configuration, nothing in it is impossible, and it has every check that applies. Only where the host side runs."""
    if importlib.util.find_spec("flagbench") is None or sys.version_info < (3, 10):
        return
    from catalogs import CATALOG
    from flagbench.record.read import read_record
    from flagbench.verify.required import APPLIES, missing_checks
    from flagbench.verify.subject import Subject
    from flagbench.verify.validity import examine

    case, read = CATALOG.cases[record["case"]], read_record(json.dumps(record).encode("utf-8"))
    checked = examine(read, case)
    assert (checked.problems, checked.not_compared) == ((), ())
    assert set(case.conditions) <= set(record["conditions"])
    # No more is required than what a run makes, and it makes nothing else that its case names.
    assert missing_checks(Subject(read, case)) == ()
    made = {check["name"] for check in record["quality"]["checks"]}
    assert {name for name in APPLIES if not APPLIES[name](Subject(read, case))}.isdisjoint(made)


class CaseRun:
    """One process of `python -m flagbench_cases distilbert`, its spool under `folder`."""

    def __init__(self, folder: str, arguments: List[str], isolated: bool = True, **options: Any) -> None:
        """`isolated`: its processes share nothing with those of other runs (see warmup.py)."""
        self.folder = str(folder)
        env = dict(os.environ, PYTHONPATH=ENTRYPOINTS, TMPDIR=self.folder)
        env.pop("FLAGBENCH_STACK", None)
        env.update(options.pop("env", {}))
        if not isolated:
            env.update(warm(env["PYTHONPATH"]))
        command = options.pop("command", [sys.executable, "-m", "flagbench_cases", "distilbert"])
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
            states: List[Optional[Progress]] = [reader.progress() for reader in self.readers()]
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


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds; fail loudly at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited %.0f s in vain" % seconds
        time.sleep(0.02)


def need(there: bool, what: str) -> None:
    """Skip where this machine lacks a part that a test runs for real; in CI, which installs it, that is a failure."""
    if not there:
        import pytest

        (pytest.fail if os.environ.get("CI") else pytest.skip)("this test needs %s" % what)


def need_megatron() -> None:
    """Megatron-Core, whichever release this Python has."""
    need(importlib.util.find_spec("megatron") is not None, "Megatron-Core")
