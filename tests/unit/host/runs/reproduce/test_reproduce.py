"""`flagbench reproduce`: how often it runs, where it ends, what it refuses before, and what is in its bundle."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.cli import reproduce as reproduce_command
from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import load_lock, lock_path
from flagbench.images.render.templates import shipped_images
from flagbench.machine.devices import Machine
from flagbench.machine.disturbance_limits import LOAD
from flagbench.machine.look import MachineFacts
from flagbench.machine.vendors import DeviceState, LocalDevice, Usage
from flagbench.records import bundle_archive as archive
from flagbench.records import bundle_documents
from flagbench.records.model import Record
from flagbench.records.series import Series, load_series
from flagbench.records.series_document import seed_of
from flagbench.records.store import Store
from flagbench.runs.reproduce import repeat as reproduce_runs
from flagbench.runs.reproduce.budget import ReproductionClock
from flagbench.verdict import Verdict, VerifyResult
from flagbench.verdict import series as reproduce_verdict
from flagbench.verdict.interval import Estimate, Terms
from flagbench.verdict.result import Against, MetricResult
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench

from .. import fake_runs
from ..fake_runs import FakeRuns, measured

CLAIM = "distilbert/a100-1x1-fp32-bs96"
ON_CPU = f"reproduce {CLAIM} --on cpu --preset tiny"
A100 = "NVIDIA A100-SXM4-40GB"
IDLE = Usage()


def has(monkeypatch: pytest.MonkeyPatch, here: Machine, usage: Usage = IDLE, load: float = 0.0) -> None:
    """The accelerators of this machine, what they are set to, and its load per processor."""
    programs = tuple(name for _, name in usage.programs)

    def look(gpus: int | None = None) -> MachineFacts:
        return MachineFacts(here, usage.devices[:gpus], programs, processors=2, load=load)

    monkeypatch.setattr(reproduce_command, "look_at_machine", look)


@pytest.fixture
def runs(fake: FakeRuns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuns:
    """No run is started, no accelerator is asked for, and bundles are written to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    has(monkeypatch, Machine((), 0))
    monkeypatch.setattr(
        reproduce_runs, "ReproductionClock", lambda limits: ReproductionClock(limits, lambda: fake.seconds)
    )
    return fake


METRIC = MetricResult(
    name="p_core", held_by="p_core", unit="", better="higher", expected=Estimate(1.0, runs=0), reason="measured"
)


def script(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
    """The verdict after each run that ended well; the last one from then on."""

    def verdict(series: Series, claim: Any, case: Any) -> tuple[list[Record], VerifyResult]:
        count = len(series.records)
        found = verdicts[min(count, len(verdicts)) - 1]
        ids = tuple(record.record_id for record in series.records)
        result = VerifyResult(found, (), f"{count} runs", case.gate, Against("claim", claim.id), ids, (METRIC,), ())
        return [*series.records], result

    monkeypatch.setattr(reproduce_runs, "series_verdict", verdict)


def unpacked(file: str) -> dict[str, bytes]:
    with archive.unpacked(Path(file)) as files:
        return {name: path.read_bytes() for name, path in files.items()}


def test_other_hardware_is_a_verdict_after_one_run(runs: FakeRuns, flagbench: Flagbench, store: Store) -> None:
    ended = flagbench(f"{ON_CPU} -o b.tar.gz --json")
    answer = json.loads(ended.out)
    assert (ended.code, answer["verdict"]["verdict"]) == (ExitCode.NOT_COMPARABLE, "NOT_COMPARABLE")
    assert (answer["ending"], answer["runs"]) == ("decided", 1)
    (request,) = runs.requests
    assert (request.options.seed, request.options.steps, request.options.set_) == (0, 50, ())
    assert any("batch_size 96" in text for text in answer["differs"])
    assert "gradient_accumulation_steps" in answer["unpublished"]
    checked = flagbench("bundle verify b.tar.gz --json").json
    assert (checked["ok"], checked["sha256"]) == (True, answer["bundle_sha256"])
    series_id, _, _ = str(request.options.run_id).rpartition("-")
    assert load_series(store, series_id).looks == (1, 2, 3, 5, 8)


def test_the_bundle_holds_everything_and_no_secret(
    runs: FakeRuns, flagbench: Flagbench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
        "NCCL_DEBUG": "INFO",
        "CUDA_CACHE_PATH": "https://me:wonderland@host/",
        "MY_OWN": "nobody's business",
    }.items():
        monkeypatch.setenv(name, value)
    assert flagbench(f"{ON_CPU} --name mine").code == ExitCode.NOT_COMPARABLE
    files = unpacked(f"{CLAIM.replace('/', '-')}-mine.tar.gz")
    record = "records/record-of-mine-1.json"
    assert {"claim.json", "verdict.json", "reproduction.json", "series/mine.json", record} < files.keys()
    assert {"environment.json", "packages.json", "logs/run.log", "SHA256SUMS"} < files.keys()
    assert files[record] == store.get("record-of-mine-1")
    assert files["series/mine.json"] == load_series(store, "mine").to_json()
    assert json.loads(files["environment.json"])["variables"]["NCCL_DEBUG"] == "INFO"
    assert json.loads(files["claim.json"])["source"]["commit"]
    assert "--name=mine" in json.loads(files["reproduction.json"])["command"]
    text = b"".join(files.values())
    assert not any(secret in text for secret in (b"hf_abcdef", b"wonderland", b"nobody's business"))


@pytest.mark.parametrize(
    ("undecided", "verdict", "count"),
    [(2, Verdict.REPRODUCED, 3), (3, Verdict.BELOW, 5)],  # no look is due after four runs
)
def test_it_repeats_until_a_look_decides(
    runs: FakeRuns,
    flagbench: Flagbench,
    monkeypatch: pytest.MonkeyPatch,
    undecided: int,
    verdict: Verdict,
    count: int,
) -> None:
    script(monkeypatch, *[Verdict.INCONCLUSIVE] * undecided, verdict)
    assert flagbench(f"{ON_CPU} --name mine -o b.tar.gz").code == verdict.exit_code
    assert [request.options.seed for request in runs.requests] == [seed_of("mine", run + 1) for run in range(count)]
    assert json.loads(unpacked("b.tar.gz")["reproduction.json"])["ending"] == "decided"


def test_runs_that_are_no_sample_end_it_and_are_bundled(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reproduce_verdict.verify_claim

    def verify(records: list[Record], claim: Any, case: Any, terms: Terms) -> VerifyResult:
        if len(records) > 1:
            raise FlagbenchError("they ran at the same time", remedy="give one of the two")
        return replace(real(records, claim, case, terms=terms), verdict=Verdict.INCONCLUSIVE)

    monkeypatch.setattr(reproduce_verdict, "verify_claim", verify)
    ended = flagbench(f"{ON_CPU} -o b.tar.gz --json")
    assert (ended.code, len(runs.requests)) == (ExitCode.INCONCLUSIVE, 2)
    assert "they ran at the same time" in json.loads(ended.out)["verdict"]["reason"]
    assert sum(name.startswith("records/") for name in unpacked("b.tar.gz")) == 2


@pytest.mark.parametrize(
    ("options", "count", "ending"),
    [
        ("--runs 4", 4, "all runs"),
        ("--max-minutes 15", 2, "time"),
        ("--max-cost 2 --price 8", 2, "time"),
    ],
)
def test_an_undecided_verdict_ends_at_a_limit(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, options: str, count: int, ending: str
) -> None:
    script(monkeypatch, Verdict.INCONCLUSIVE)
    ended = flagbench(f"{ON_CPU} {options} -o b.tar.gz --json")
    assert (ended.code, len(runs.requests)) == (ExitCode.INCONCLUSIVE, count)
    answer = json.loads(ended.out)
    assert answer["ending"] == ending
    limits = [request.options.max_minutes for request in runs.requests]
    if ending == "time":
        assert limits == [15, pytest.approx(15 - 400 / 60)]
    if "price" in options:
        assert answer["cost"] == pytest.approx(8 * 400 * count / 3600, rel=1e-3)


@pytest.mark.parametrize(
    ("endings", "code", "held"),
    [
        (["ok", "failed"], 5, 2),
        (["ok", "interrupted"], 7, 2),
        (["ok", "signalled"], 7, 2),
        (["ok", "not started"], 15, 1),
    ],
)
def test_a_run_that_fails_ends_it_and_is_bundled(
    runs: FakeRuns,
    flagbench: Flagbench,
    monkeypatch: pytest.MonkeyPatch,
    endings: list[str],
    code: int,
    held: int,
) -> None:
    script(monkeypatch, Verdict.INCONCLUSIVE)
    runs.endings = endings
    assert (flagbench(f"{ON_CPU} -o b.tar.gz").code, len(runs.requests)) == (code, len(endings))
    files = unpacked("b.tar.gz")
    assert sum(name.startswith("records/") for name in files) == held


def test_a_run_that_the_limit_ends_is_left_out(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, Verdict.INCONCLUSIVE)
    monkeypatch.setitem(fake_runs.ENDINGS, "too long", ("failed", int(ExitCode.TIMEOUT)))
    monkeypatch.setattr(ReproductionClock, "allows_another", True)
    for endings, code in ((["ok", "too long"], ExitCode.INCONCLUSIVE), (["too long"], ExitCode.TIMEOUT)):
        runs.endings, runs.requests[:] = endings, []
        limit = len(endings) * fake_runs.TAKES / 60
        ended = flagbench(f"{ON_CPU} --max-minutes {limit} -o b{len(endings)}")
        assert (ended.code, len(runs.requests)) == (code, len(endings))


def test_ctrl_c_while_a_record_is_stored(
    runs: FakeRuns,
    flagbench: Flagbench,
    monkeypatch: pytest.MonkeyPatch,
    signalled_at_the_second_record: Callable[..., None],
) -> None:
    signalled_at_the_second_record(signal.SIGINT, signal.SIGINT)
    script(monkeypatch, Verdict.INCONCLUSIVE)
    assert flagbench(f"{ON_CPU} --name mine -o b.tar.gz").code == ExitCode.INTERRUPTED
    assert [name for name in unpacked("b.tar.gz") if "records/" in name] == ["records/record-of-mine-1.json"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_while_it_is_bundled_leaves_nothing(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """After SIGKILL, nothing once another bundle is written there."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    command, pack = f"{ON_CPU} -o b/b.tar.gz", bundle_documents.pack
    child = os.fork()
    if not child:
        code = -1  # an error ends the child too, which would else go on as a second test process
        try:
            bundle_documents.pack = lambda files, part: os.kill(os.getpid(), number)
            code = main.run(command.split())
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == (-number if number == signal.SIGKILL else ExitCode.INTERRUPTED)
    if number == signal.SIGKILL:
        assert bundle_documents.pack is pack
        assert flagbench(command).code == ExitCode.NOT_COMPARABLE
        Path("b/b.tar.gz").unlink()
    assert (os.listdir("b"), os.listdir("temporary")) == ([], [])


def test_a_failed_run_is_a_bundle_that_holds(runs: FakeRuns, flagbench: Flagbench) -> None:
    runs.endings = ["failed"]
    assert flagbench(f"{ON_CPU} -o b.tar.gz").code == 5
    assert flagbench("bundle verify b.tar.gz --json").json["verdict"]["verdict"] == "INVALID"


def test_where_nothing_was_measured_there_is_no_bundle(runs: FakeRuns, flagbench: Flagbench) -> None:
    runs.endings = ["not started"]
    assert flagbench(f"{ON_CPU} -o b.tar.gz").code == ExitCode.ENGINE
    assert not Path("b.tar.gz").exists()


def test_a_bundle_that_cannot_be_written(runs: FakeRuns, flagbench: Flagbench, small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(60_000))
    ended = flagbench(f"{ON_CPU} -o", str(small_disk / "b.tar.gz"))
    assert (ended.code, os.listdir(small_disk)) == (ExitCode.NOT_STORED, ["full"])
    assert "NOT_COMPARABLE" in ended.out
    assert "bundle" in ended.err


def test_the_bundle_of_a_container_has_the_lock_of_its_image(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = load_lock(CATALOG.stacks["cpu"], shipped_images())
    assert lock is not None
    software = {**fake_runs.measured(1)["software"], "lock_digest": lock.digest}
    monkeypatch.setattr(fake_runs, "measured", lambda number: {**measured(number), "software": software})
    assert flagbench(f"{ON_CPU} --via docker -o b.tar.gz").code == ExitCode.NOT_COMPARABLE
    files = unpacked("b.tar.gz")
    about = json.loads(files["reproduction.json"])
    assert (about["via"], about["image"], about["missing"]) == ("docker", "flagbench/distilbert:cpu", {})
    assert files["pylock.toml"] == lock_path("cpu", shipped_images()).read_bytes()
    assert "packages.json" not in files


def test_a_lock_that_the_image_was_not_built_from_is_left_out(runs: FakeRuns, flagbench: Flagbench) -> None:
    assert flagbench(f"{ON_CPU} --via docker -o b.tar.gz").code == ExitCode.NOT_COMPARABLE
    files = unpacked("b.tar.gz")
    missing = json.loads(files["reproduction.json"])["missing"]
    assert "the lock that flagbench/distilbert:cpu was built from" in missing["pylock.toml"]
    assert "pylock.toml" not in files


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"{ON_CPU} --max-cost 3", 2),
        (f"{ON_CPU} --max-minutes nan", 2),
        (f"{ON_CPU} --name ../x", 2),
        (f"{ON_CPU} --steps 3 --full", 2),
        (f"{ON_CPU} -o taken.tar.gz", 2),
        (f"{ON_CPU} --data /no/such/folder", 3),
        (f"reproduce {CLAIM} --on cpu", 2),  # the published size on a processor is asked about
        (f"reproduce {CLAIM} --on no-such-stack", 2),
        (f"reproduce {CLAIM} --gpus 2", 2),
        ("reproduce distilbert/no-such-row", 2),
        ("reproduce distilbert", 2),
        (f"reproduce {CLAIM}", 13),
        (f"reproduce {CLAIM} --on hopper", 2),
        ("reproduce distilbert/a100-2x8-fp32-bs96", 13),
        ("reproduce glm/r300-1x1-fp32-bs4", 13),
    ],
)
def test_what_cannot_be_reproduced_starts_nothing(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, words: str, code: int
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    Path("taken.tar.gz").touch()
    ended = flagbench(words)
    assert (ended.code, runs.requests) == (code, [])
    assert "fix: " in ended.err or "Error: " in ended.err


def machine(name: str = A100, count: int = 8, memory: float = 40.0, partition: bool = False) -> Machine:
    return Machine(tuple(LocalDevice(name, memory, f"GPU-{i}", partition) for i in range(count)), count)


STATE = DeviceState("GPU-0", "535.54", power_limit_w=400, power_default_w=400)
SOUND = Usage((STATE,))


@pytest.mark.parametrize(
    ("here", "usage", "named", "forbidden"),
    [
        (machine(), SOUND, "", False),
        (machine(), Usage((DeviceState("GPU-0", "460.1"),)), "driver", False),
        (machine(), Usage((DeviceState("GPU-0", power_limit_w=250, power_default_w=400),)), "power cap", False),
        (machine(), Usage((STATE,), (("GPU-0", "python (pid 7)"),)), "foreign processes", False),
        (machine(), Usage((DeviceState("GPU-0", partitioned=True),)), "MIG", True),
        (machine(memory=9.5), SOUND, "memory of the device", True),
        (Machine((*machine().devices, LocalDevice("NVIDIA L4", 24.0, "GPU-8")), 8), SOUND, "", False),
        (machine(partition=True), SOUND, "MIG", True),
        (machine("NVIDIA H200", memory=141.0), SOUND, "device", True),
        (machine(count=0), Usage(), "device", True),
        (Machine((), 0, "nvidia-smi did not answer"), Usage(), "device", True),
    ],
)
def test_preflight_names_what_is_wrong_with_a_remedy(
    runs: FakeRuns,
    flagbench: Flagbench,
    monkeypatch: pytest.MonkeyPatch,
    here: Machine,
    usage: Usage,
    named: str,
    forbidden: bool,
) -> None:
    has(monkeypatch, here, usage)
    ended = flagbench(f"reproduce {CLAIM} --dry-run --json")
    assert ended.code == (ExitCode.WRONG_HARDWARE if forbidden else 0)
    others = ("disk of the store", "engine", "image", "lock")
    found = [f for f in json.loads(ended.out)["preflight"] if f["level"] != "ok" and f["name"] not in others]
    assert {f["name"] for f in found} == ({named} if named else set())
    assert all(f["remedy"] for f in found)
    answer = flagbench(f"reproduce {CLAIM} --dry-run").out.splitlines()[0]
    forbidding = [f["detail"] for f in found if f["level"] == "fail"]
    assert all(detail in answer for detail in forbidding)
    assert ("REPRODUCED" in answer) is not forbidden
    if named == "driver":  # a torch of its own may do with an older one
        native = json.loads(flagbench(f"reproduce {CLAIM} --dry-run --json --via native").out)["preflight"]
        assert {f["level"] for f in native if f["name"] == named} == {"ok"}


@pytest.mark.parametrize(("load", "levels"), [(LOAD - 0.1, []), (LOAD, ["warn"])])
def test_a_loaded_processor_is_a_warning(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, load: float, levels: list[str]
) -> None:
    has(monkeypatch, Machine((), 0), load=load)
    found = flagbench(f"{ON_CPU} --dry-run --json").json["preflight"]
    assert [finding["level"] for finding in found if finding["name"] == "foreign processes"] == levels


@pytest.mark.parametrize(("via", "level"), [("docker", "warn"), ("native", "ok")])
def test_an_engine_elsewhere_says_nothing_of_a_native_run(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, via: str, level: str
) -> None:
    has(monkeypatch, machine(), SOUND)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    found = flagbench(f"reproduce {CLAIM} --dry-run --json --via {via}").json["preflight"]
    assert [finding["level"] for finding in found if finding["name"] in ("device", "devices")] == [level]


def test_other_hardware_is_refused_with_the_closest_rows(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, machine("MXC500", 8, 64.0))
    ended = flagbench(f"reproduce {CLAIM}")
    assert ended.code == ExitCode.WRONG_HARDWARE
    rows = [line.strip() for line in ended.err.splitlines() if line.strip().startswith("distilbert/c500-1x8")]
    assert rows
    allowed = flagbench(f"reproduce {CLAIM} --on c500-maca2.18 --dry-run --json")
    assert (allowed.code, allowed.json["verdicts"]) == (0, ["NOT_COMPARABLE"])
    assert any(A100 in text for text in allowed.json["differs"])


def test_a_plan_names_every_obstacle_at_once(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, machine("NVIDIA H100 80GB HBM3", 8, 79.6))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    ended = flagbench("reproduce llama2-70b/h800-4x8-amp-tp8-pp4 --on h100 --gpus 8 --dry-run --json")
    plan = json.loads(ended.out)
    levels = {finding["name"]: finding["level"] for finding in plan["preflight"]}
    assert (ended.code, levels["layout"]) == (ExitCode.WRONG_HARDWARE, "fail")
    assert {levels[name] for name in ("device", "engine")} == {"warn"}
    assert plan["verdicts"] == ["NOT_COMPARABLE"]
    assert "nodes: 1, the row has 4" in plan["differs"]
    whole = json.loads(flagbench("reproduce llama2-70b/h800-4x8-amp-tp8-pp4 --dry-run --json").out)
    assert "layout" not in {finding["name"] for finding in whole["preflight"]}
    assert {"REPRODUCED", "BELOW"} < {*whole["verdicts"]}


def test_the_nodes_of_a_row_are_started_one_by_one(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, machine())
    ended = flagbench("reproduce distilbert/a100-2x8-fp32-bs96")
    assert ended.code == ExitCode.WRONG_HARDWARE
    assert "flagbench run distilbert:a100-cuda11.6 --nodes=2 --gpus=8" in ended.err
    assert "--set=batch_size=96" in ended.err
    assert "flagbench verify NAME --claim distilbert/a100-2x8-fp32-bs96" in ended.err
    named = flagbench("reproduce distilbert/a100-2x8-fp32-bs96 --name mine")
    assert "--name=mine --node-rank=K" in named.err
    assert "flagbench verify mine --claim" in named.err


def test_too_few_devices_are_refused_on_another_stack_too(
    runs: FakeRuns, flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, machine(count=2))
    words = "reproduce distilbert/a100-1x8-fp32 --on a100-cuda11.6 --dry-run --json"
    assert flagbench(words).code == ExitCode.WRONG_HARDWARE
    assert flagbench(f"{words} --gpus 2").code == 0
