"""An honest certificate verifies, however it was made, and a changed one does not: `accept` and `bundle verify` on
recorded runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catalogs import CATALOG
from flagbench.accept.certificate import CERTIFICATE, JUNIT, PAGE, junit_of
from flagbench.accept.certificate_page import render
from flagbench.accept.check import Outcome
from flagbench.accept.document import Certificate
from flagbench.accept.plan import AcceptanceClock
from flagbench.errors import FlagbenchError
from flagbench.records.bundle_archive import SUMS, unpacked
from flagbench.records.bundle_documents import record_path, write_bundle
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.native import NativeLauncher
from flagbench.runs.request import RunRequest
from flagbench.verdict.recompute import recompute
from flagbench_core.exit_codes import ExitCode
from honest import Pace, honest_record
from make_replays import REPLAYS
from served import CASE, served_record
from unit.host.conftest import Ended, Flagbench, Pci
from unit.host.verdict.conftest import MEASURED, ROWS

Raw = dict[str, Any]
RECORDED = {
    ("roofs", "cpu"): ROWS / "run-roofs-2.json",
    ("roofs", "cuda13"): MEASURED / "h100-roofs.json",
    ("llama3.1-8b-lora", "cuda13"): MEASURED / "h100-llama3.1-8b-lora.json",
}
_TINY = REPLAYS["cpu-tiny"][0]
TINY_ON_TWO_RANKS = replace(_TINY, run=replace(_TINY.run, gpus=2))
BITS = {"name": "matmul_fp32", "digests": {"00": [0, 1]}, "changed": [], "apart": []}
ONE_H100 = """#!/bin/sh
case "$*" in
*memory.total*) echo "NVIDIA H100 80GB HBM3, 81559 MiB, GPU-0";;
*driver_version*) echo "GPU-0, 580.95.05, Enabled, 700.00, 700.00";;
esac
"""
HOST = "node-17"
TOOK = 7.2468
"""Seconds of an acceptance by its clock. Rounded to a tenth, they are others."""


@dataclass
class RecordedRuns:
    """A launcher whose runs leave recorded ones, each with an identity of its own, and a clock that they advance."""

    change: Callable[[Raw], Any] = lambda raw: None
    """Changes what a run left."""
    endings: list[str] = field(default_factory=list)
    """How each run ends; `ok` where it is not said."""
    count: int = 0
    elapsed: float = 0.0
    """Seconds that the runs so far took."""

    def now(self) -> str:
        """Stands for `utc_now`."""
        return f"{datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.elapsed):%Y-%m-%dT%H:%M:%SZ}"

    def launch(self, request: RunRequest) -> LaunchResult:
        """Stands for `Launcher.launch`."""
        ending = self.endings[self.count] if self.count < len(self.endings) else "ok"
        self.count += 1
        if ending == "not started":
            raise FlagbenchError("no engine", remedy="start it", code=ExitCode.ENGINE)
        if ending == "no record":
            return LaunchResult(b"", ExitCode.RANK_FAILED)
        raw = self.recorded(request)
        self.change(raw)
        if ending == "interrupted":
            raw["status"].update(state="interrupted", exit_code=7, reason="SIGINT")
            return LaunchResult(json.dumps(raw).encode(), ExitCode.INTERRUPTED, signalled=True)
        return LaunchResult(json.dumps(raw).encode(), ExitCode.OK)

    def recorded(self, request: RunRequest) -> Raw:
        """The record of this run."""
        raw: Raw
        if request.case.name == "distilbert":
            raw = honest_record(TINY_ON_TWO_RANKS, Pace(seed=self.count), count=130)
        elif request.case.name == CASE:
            raw = served_record(0.6, copy=4.0e12)
        else:
            raw = json.loads(RECORDED[request.case.name, request.stack.name].read_text(encoding="utf-8"))
        if request.stack.name == "cpu" and request.case.name == "roofs":
            raw["results"] = [copy.deepcopy(BITS)]
            raw["telemetry"]["cpu"].update(others_mean=0.0, steal_mean=0.0)
        self.elapsed += raw["timing"]["e2e"] + 1
        raw["system"]["host"] = HOST
        raw.update(run_id=f"run-{self.count}", record_id=f"record-of-run-{self.count}", created_at=self.now())
        return raw


@pytest.fixture
def runs(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedRuns:
    """What `accept` runs in this process, within TOOK seconds of its clock."""
    recorded = RecordedRuns()
    for launcher in (NativeLauncher, DockerLauncher):
        monkeypatch.setattr(launcher, "launch", lambda self, request: recorded.launch(request))
        monkeypatch.setattr(launcher, "check", lambda self, request: None)
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.utc_now", recorded.now)
    monkeypatch.setattr("flagbench.accept.certificate.utc_now", recorded.now)
    monkeypatch.setattr("flagbench.runs.launchers.launch_time.elapsed", lambda: recorded.elapsed)
    monkeypatch.setattr(AcceptanceClock, "seconds", TOOK)
    return recorded


@pytest.fixture
def h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pci: Pci) -> None:
    """A machine with an H100, as its vendor's tool says."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(ONE_H100, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.fixture
def accept(flagbench: Flagbench, runs: RecordedRuns, tmp_path: Path) -> Callable[[str], Raw]:
    """`accept(options)`: the certificate of an acceptance, whose bundle verifies as it is."""

    def made(options: str) -> Raw:
        bundle = tmp_path / f"accept-{runs.count}.tar.gz"
        ended = flagbench(f"accept {options} --json --out {bundle}")
        certificate: Raw = json.loads(ended.out)
        verified = flagbench(f"bundle verify {bundle} --json")
        assert (verified.err, verified.code) == ("", ExitCode.OK)
        assert json.loads(verified.out)["certificate"] == certificate
        return certificate

    return made


CPU = "--case distilbert:cpu --gpus 2 --via docker"


def test_with_a_price_and_junit(accept: Callable[[str], Raw], tmp_path: Path) -> None:
    certificate = accept(f"{CPU} --price 0.37 --junit {tmp_path / 'checks.xml'}")
    assert certificate["outcome"] == "PASS"
    assert certificate["cost"] == round(0.37 * certificate["seconds"] / 3600, 4)
    assert (tmp_path / "checks.xml").is_file()


@pytest.mark.skipif(find_spec("torch") is None, reason="a native run imports it")
def test_natively(accept: Callable[[str], Raw]) -> None:
    assert accept(CPU.replace("docker", "native"))["outcome"] == "PASS"


@pytest.mark.usefixtures("h100")
def test_without_a_case(accept: Callable[[str], Raw]) -> None:
    certificate = accept("--gpus 1 --via docker --minutes 1 --price 2.5")
    assert (certificate["outcome"], len(certificate["facts"]["parts"])) == ("INCONCLUSIVE", 1)
    assert certificate["facts"]["without_case"]


@pytest.mark.usefixtures("h100", "only_cited")
def test_of_an_accelerator_with_published_rows(accept: Callable[[str], Raw]) -> None:
    certificate = accept("--case llama3.1-8b-lora --gpus 1 --via docker --minutes 30 --price 2.5")
    assert certificate["efficiency"][0]["price_per_million"] > 0
    assert any("automodel" in check["against"] for check in certificate["checks"])


def use_two_devices(raw: Raw) -> None:
    if raw["case"] == "roofs":
        raw["config"]["gpus"] = raw["system"]["devices_per_node"] = 2


@pytest.mark.usefixtures("h100")
def test_with_serving_on_one_device_and_a_stack_of_its_own(
    accept: Callable[[str], Raw], runs: RecordedRuns, store: Store, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text(ONE_H100.replace('GPU-0";;', 'GPU-0"; echo "NVIDIA H100 80GB HBM3, 81559 MiB, GPU-1";;', 1))
    runs.change = use_two_devices
    certificate = accept("--gpus 2 --via docker --minutes 3 --serving --price 24")
    assert [part["case"] for part in certificate["facts"]["parts"]] == ["roofs", CASE]
    assert certificate["software"]["python"] == "3.12.3"  # that of the roofs
    (serving,) = certificate["efficiency"]
    assert serving["price_per_million"] is None  # the price is that of both devices
    off_node = accept(f"--from {store.url} --host {HOST}")
    assert [part["case"] for part in off_node["facts"]["parts"]] == ["roofs", CASE]
    assert off_node["facts"]["gpus"] == 2


def test_off_the_node(accept: Callable[[str], Raw], flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    accept(CPU)
    certificate = accept(f"--from {store.url} --host {HOST}")
    assert (certificate["outcome"], certificate["facts"]["off_node"]) == ("PASS", True)
    assert [part["case"] for part in certificate["facts"]["parts"]] == ["roofs", "distilbert"]
    assert [len(part["history"]) for part in certificate["facts"]["parts"]] == [0, 0]
    nobody = flagbench(f"accept --from {store.url} --host nobody --out {tmp_path / 'nobody.tar.gz'}")
    assert (nobody.code, nobody.out) == (ExitCode.DATA, "")


def test_off_the_node_beside_its_own_earlier_runs(
    accept: Callable[[str], Raw], runs: RecordedRuns, store: Store
) -> None:
    accept(CPU)
    runs.change = lambda raw: raw["system"].update(host="node-18")  # the same processor
    accept(CPU)
    runs.change = lambda raw: None
    beside = accept(CPU)
    assert [len(part["history"]) for part in beside["facts"]["parts"]] == [1, 1]
    certificate = accept(f"--from {store.url} --host {HOST}")
    histories = [part["history"] for part in certificate["facts"]["parts"]]
    assert histories == [["record-of-run-1"], ["record-of-run-2"]]


def test_off_the_node_without_records_of_the_future_and_on_fewer_devices(
    accept: Callable[[str], Raw], store: Store
) -> None:
    accept(CPU)
    fewer = json.loads(store.get("record-of-run-2"))
    fewer["config"]["gpus"] = fewer["system"]["devices_per_node"] = 1
    for entry in [*store.list_records()]:
        raw = json.loads(store.read(entry))
        raw.update(record_id=f"future-{raw['record_id']}", created_at="2099-01-01T00:00:00Z")
        store.put(json.dumps(raw).encode())
    fewer.update(record_id="record-of-later", created_at="2026-01-02T00:00:00Z")
    store.put(json.dumps(fewer).encode())
    certificate = accept(f"--from {store.url} --host {HOST}")
    assert [part["record_id"] for part in certificate["facts"]["parts"]] == ["record-of-run-1", "record-of-run-2"]


def test_off_the_node_without_records_that_cannot_be_judged(
    accept: Callable[[str], Raw], flagbench: Flagbench, store: Store, tmp_path: Path
) -> None:
    accept(CPU)
    accept(CPU)
    distilbert, roofs, *_ = store.list_records()
    Path(distilbert.location).write_text("{}")
    raw = json.loads(store.read(roofs))
    raw["config"]["gpus"] = 10**9
    Path(roofs.location).write_text(json.dumps(raw))

    ended = flagbench(f"accept --from {store.url} --host {HOST} --json --out {tmp_path / 'off.tar.gz'}")

    parts = json.loads(ended.out)["facts"]["parts"]
    assert [part["record_id"] for part in parts] == ["record-of-run-1", "record-of-run-2"]
    assert distilbert.location in ended.err
    assert roofs.location in ended.err


def test_off_the_node_where_a_rank_was_killed(accept: Callable[[str], Raw], runs: RecordedRuns, store: Store) -> None:
    runs.change = lambda raw: raw["status"].update(state="failed", exit_code=4, reason="rank 1 was killed")
    accept(CPU)
    certificate = accept(f"--from {store.url} --host {HOST}")
    assert (certificate["action"]["do"], certificate["action"]["minutes"]) == ("run again", None)


@pytest.mark.usefixtures("h100")
def test_off_the_node_of_an_accelerator(accept: Callable[[str], Raw], store: Store) -> None:
    accept("--case llama3.1-8b-lora --gpus 1 --via docker --minutes 30")
    certificate = accept(f"--from {store.url} --host {HOST}")
    not_known = {check["name"] for check in certificate["checks"] if check["outcome"] == "NOT_KNOWN"}
    assert {"devices", "undisturbed"} <= not_known


def test_off_the_node_where_a_check_fails(accept: Callable[[str], Raw], runs: RecordedRuns, store: Store) -> None:
    runs.change = lambda raw: raw["results"][0].update(changed=[1])
    for certificate in (accept(CPU), accept(f"--from {store.url} --host {HOST}")):
        action = certificate["action"]
        assert (certificate["outcome"], action["ranks"], action["devices"]) == ("FAIL", [1], [])


@pytest.mark.parametrize(
    "options",
    [
        "--from {url}",
        "--host node-17",
        "--from {url} --host node-17 --case roofs",
        "--from {url} --host node-17 --minutes 5",
        "--from {url} --host node-17 --dry-run",
    ],
)
def test_off_the_node_without_what_it_needs(flagbench: Flagbench, store: Store, tmp_path: Path, options: str) -> None:
    ended = flagbench(f"accept {options.format(url=store.url)} --out {tmp_path / 'off.tar.gz'}")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")


@pytest.mark.usefixtures("h100")
def test_where_a_device_is_missing(accept: Callable[[str], Raw], runs: RecordedRuns) -> None:
    assert accept("--case distilbert --gpus 8 --via docker --price 24")["outcome"] == "FAIL"
    assert runs.count == 0


LOST = "Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


@pytest.mark.parametrize(
    ("script", "options", "outcome", "words"),
    [
        (f"echo '{LOST}'; exit 255", "", "FAIL", LOST),
        (f"echo '{MISMATCH}'; exit 18", "--case distilbert:cuda13", "INCONCLUSIVE", MISMATCH),
        ("exec /bin/sleep 1000", "", "INCONCLUSIVE", "nvidia-smi -pm 1"),
        ("echo No devices were found", "--case distilbert:cuda13", "FAIL", "0000:ba:00.0"),
    ],
    ids=["lost", "mismatch", "hangs", "none"],
)
@pytest.mark.usefixtures("h100")
def test_where_the_vendors_tool_fails(
    accept: Callable[[str], Raw],
    runs: RecordedRuns,
    pci: Pci,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    options: str,
    outcome: str,
    words: str,
) -> None:
    monkeypatch.setattr("flagbench.machine.vendors.TOOL_SECONDS", 0.2 if "sleep" in script else 5.0)
    pci("0000:ba:00.0")
    (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    certificate = accept(options)
    assert (certificate["outcome"], certificate["facts"]["stack"], runs.count) == (outcome, "cuda13", 0)
    assert [(check["name"], check["outcome"]) for check in certificate["checks"]] == [("devices", outcome)]
    assert words in " ".join((certificate["reason"], *certificate["action"]["remedies"]))
    assert certificate["action"]["do"] == ("drain" if outcome == "FAIL" else "fix")


@pytest.mark.usefixtures("h100")
def test_where_one_device_of_two_is_lost(accept: Callable[[str], Raw], runs: RecordedRuns, pci: Pci) -> None:
    pci("0000:18:00.0", "0000:ba:00.0")
    certificate = accept("--via docker")
    assert (certificate["outcome"], certificate["facts"]["gpus"], runs.count) == ("FAIL", 2, 0)
    assert (certificate["action"]["do"], certificate["action"]["ranks"]) == ("drain", [])


@pytest.mark.usefixtures("h100")
def test_where_a_tool_fails_without_its_devices(flagbench: Flagbench, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\necho '{MISMATCH}'\nexit 18\n")
    ended = flagbench("accept --dry-run")
    assert (ended.code, MISMATCH in ended.err, "2 x cpu" in ended.out) == (ExitCode.OK, True, True)
    plan = flagbench("accept --dry-run --json").json
    assert (plan["stack"], plan["gpus"], plan["runs"][0]["image"]) == ("cpu", 2, "roofs:cpu")


@pytest.mark.parametrize(
    "endings", [["interrupted"], ["ok", "interrupted"], ["ok", "not started"], ["ok", "no record"]]
)
def test_where_a_run_does_not_end(accept: Callable[[str], Raw], runs: RecordedRuns, endings: list[str]) -> None:
    runs.endings = endings
    certificate = accept(f"{CPU} --price 24")
    assert certificate["outcome"] == "INCONCLUSIVE"
    assert (certificate["reason"] == "interrupted") is (endings[-1] == "interrupted")


@pytest.fixture(scope="module")
def honest_files() -> dict[str, Any]:
    """The files of the bundle of an honest certificate, once the first test that changes one has made it."""
    return {}


@pytest.fixture
def verify_changed(
    accept: Callable[[str], Raw], honest_files: dict[str, Any], flagbench: Flagbench, tmp_path: Path
) -> Callable[..., Ended]:
    """`verify_changed(change, files)`: verifies a certificate that was changed and packed again, as was its page.

    `change` gets the document, and `files` the other files of its bundle.
    """

    def verified(change: Callable[[Raw], Any], files: Callable[[dict[str, Any]], Any] = lambda files: None) -> Ended:
        if not honest_files:
            accept(f"{CPU} --price 24")
            with unpacked(tmp_path / "accept-0.tar.gz") as paths:
                honest_files.update((name, path.read_bytes()) for name, path in paths.items() if name != SUMS)
        contents = dict(honest_files)
        document = json.loads(contents[CERTIFICATE])
        change(document)
        contents[CERTIFICATE] = json.dumps(document).encode()
        with suppress(ValueError, OverflowError):
            certificate = msgspec.convert(document, Certificate)
            records = {}
            for run in certificate.facts.parts:
                path = record_path(run.record_id or "")
                if path in contents:
                    records[path] = read_record(contents[path])
            contents.update({PAGE: render(certificate, records), JUNIT: junit_of(certificate)})
        files(contents)
        write_bundle(tmp_path / "changed.tar.gz", contents)
        return flagbench(f"bundle verify {tmp_path / 'changed.tar.gz'}")

    return verified


def of_another_version(change: Callable[[Raw], Any]) -> Callable[[Raw], Any]:
    def changed(document: Raw) -> None:
        document["flagbench"] = {"version": "0.1.9", "commit": None}
        change(document)

    return changed


def drop_the_case(document: Raw) -> None:
    """As if nothing but the roofs had been run, and everything else followed from that."""
    document["facts"]["parts"].pop()
    document["checks"] = [check for check in document["checks"] if check["part"] != "distilbert"]
    document["numbers"] = [number for number in document["numbers"] if number["part"] != "distilbert"]
    document.update(efficiency=[], reason=f"all {len(document['checks'])} checks passed")


def change_a_share(document: Raw) -> None:
    document["devices"][0]["share"] = 1.5


NEVER: dict[str, Callable[[Raw], Any]] = {
    "a number": lambda document: document["numbers"][0].update(value=1.0),
    "a device": change_a_share,
    "the cost": lambda document: document.update(cost=0.01),
    "the host": lambda document: document["facts"]["machine"].update(host="node-18"),
    "the date": lambda document: document.update(created_at="2026-02-01T00:00:00Z"),
    "the ranks": lambda document: document["facts"].update(gpus=1),
    "the stack": lambda document: document["facts"].update(stack="cuda13"),
    "the state": lambda document: document["facts"]["parts"][1].update(state="failed"),
    "the outcome": lambda document: document.update(outcome="FAIL"),
    "a dropped part": drop_the_case,
    "another record": lambda document: document["facts"]["parts"][1].update(record_id="record-of-run-3"),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_no_version_may_say(verify_changed: Callable[..., Ended], name: str) -> None:
    ended = verify_changed(of_another_version(NEVER[name]))
    assert ended.code == ExitCode.INVALID, ended
    assert "PASS:" not in ended.out


def reword(document: Raw) -> None:
    document.update(reason="all 99 checks passed")
    document["checks"][0].update(measured="well done")


def lower_limit(document: Raw) -> None:
    document["facts"]["limits"][0]["inconclusive_below"] = 0.01


@pytest.mark.parametrize(
    ("change", "code"), [(lower_limit, ExitCode.INVALID), (of_another_version(lower_limit), ExitCode.OK)]
)
def test_other_limits_are_named(
    verify_changed: Callable[..., Ended], change: Callable[[Raw], Any], code: ExitCode
) -> None:
    ended = verify_changed(change)
    assert (ended.code, "processor-product-history" in ended.out + ended.err) == (code, True)


def test_words_of_this_version_are_those_computed_again(verify_changed: Callable[..., Ended]) -> None:
    assert verify_changed(reword).code == ExitCode.INVALID


def test_words_of_another_version_are_noted_and_not_printed(verify_changed: Callable[..., Ended]) -> None:
    ended = verify_changed(of_another_version(reword))
    shown, *notes = ended.out.split("note: ")
    assert ended.code == ExitCode.OK
    assert "all 99" not in shown
    assert "well done" not in shown
    assert notes[0].startswith("reason: all 99 checks passed in the certificate, and all 5 checks passed")
    assert notes[1].startswith("checks.roofs: ran against its own checks: PASS, well done")


def add_slowest_devices(raw: Raw) -> None:
    """The metrics of a record as this version writes them: that of the roofs is of an earlier one."""
    record = read_record(json.dumps(raw).encode())
    raw["metrics"] = msgspec.to_builtins(recompute(record, CATALOG.cases[record.case]).record.metrics)


def test_the_slowest_device_of_a_number(accept: Callable[[str], Raw], runs: RecordedRuns, tmp_path: Path) -> None:
    runs.change = add_slowest_devices
    accept(CPU)
    with unpacked(tmp_path / "accept-0.tar.gz") as paths:
        document = json.loads(paths[CERTIFICATE].read_bytes())
        page = paths[PAGE].read_text(encoding="utf-8")
    slowest = {each["name"]: each["slowest_device"] for each in document["numbers"] if each["part"] == "roofs"}
    assert slowest["memory_bandwidth"]["rank"] == 1
    assert slowest["all_reduce_busbw"] is None
    assert "slowest device" in page.lower()


def forget(document: Raw) -> None:
    """As a version wrote it that did not say what joules and tokens are of, and which device is the slowest."""
    for run in document["efficiency"]:
        for name in ("joules_of", "joules_source", "joules_error", "padding_included"):
            del run[name]
    for number in document["numbers"]:
        del number["slowest_device"]


def test_a_certificate_of_a_version_that_knew_less_is_valid(verify_changed: Callable[..., Ended]) -> None:
    ended = verify_changed(of_another_version(forget))
    assert ended.code == ExitCode.OK
    assert "note: efficiency[0].padding_included: nothing in the certificate, and True computed again" in ended.out


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["facts"].update(gpus=10**9),
        lambda document: document["facts"]["machine"].update(visible=-(10**9), devices=[{}] * 2000),
        lambda document: document["checks"][0].update(outcome="SPLENDID"),
        lambda document: document["checks"][0].update(ranks=["0"]),
        lambda document: document["facts"].update(ending=None),
        lambda document: document["facts"]["asked"].update(minutes=10**400),
        lambda document: document["action"].update(do="rm -r /"),
        lambda document: document.update(reason="x" * 10**6),
        lambda document: document.update(created_at="0000-13-01T00:00:00Z"),
        lambda document: document.update(created_at="0001-01-01T00:00:00Z"),
        lambda document: document["facts"]["parts"][0].update(priors={"p_core": {"spread": -1}}),
        lambda document: document["facts"]["parts"][0].update(case="no-case"),
        lambda document: document.update(schema="certificate/v2"),
        lambda document: document.pop("software"),
    ],
)
def test_what_is_no_certificate_is_an_error_of_data(
    verify_changed: Callable[..., Ended], change: Callable[[Raw], Any]
) -> None:
    ended = verify_changed(of_another_version(change))
    assert ended.code == ExitCode.DATA
    assert "certificate.json is not whole" in ended.err or "certificate.json cannot be read" in ended.err


def test_a_record_that_is_gone_is_missed(verify_changed: Callable[..., Ended]) -> None:
    ended = verify_changed(
        of_another_version(lambda document: None), lambda files: files.pop(record_path("record-of-run-2"))
    )
    assert (ended.code, "its record record-of-run-2 is not in it" in ended.err) == (ExitCode.INVALID, True)


def test_the_certificate_of_the_docs_can_be_read() -> None:
    content = (MEASURED.parent / "verdict" / CERTIFICATE).read_bytes()
    assert msgspec.json.decode(content, type=Certificate).outcome is Outcome.PASS
