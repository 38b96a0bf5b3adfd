"""Runs of serve-llama3.1-8b: with a stand-in for vLLM to their end and with faults, and with vLLM itself."""

import fcntl
import glob
import os
import sys

import pytest

from faults import fault
from flagbench_cases.engines.vllm import check_settings
from flagbench_cases.shared.errors import UsageError
from running import ENTRYPOINTS, ROOT, CaseRun, need, run_case

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(sys.version_info < (3, 10), reason="vLLM 0.31 needs a newer Python"),
]

CASE = "serve-llama3.1-8b"
TINY = ["--preset", "tiny"]
SHORT = [*TINY, "--steps", "3"]
TWO_RANKS = ["--gpus", "2", "--set", "tp=2"]
WITHOUT_COMPILER = ["--set", "temperature=0"]
"""torch compiles vLLM's sampler on first use, which takes ten seconds in a folder without its cache."""
KILL = "import signal; os.kill(os.getpid(), signal.SIGKILL)"
STANDIN = os.path.join(ROOT, "tests", "standins", "vllm")
VLLM = os.path.join(sys.prefix, "serving")


def paths(*folders):
    """The environment of a run whose Python finds modules in these folders, too."""
    return {"PYTHONPATH": os.pathsep.join([*folders, ENTRYPOINTS])}


def planted(tmp_path, rank, at, action, vllm=STANDIN):
    """The environment of a run with vLLM or its stand-in, in which a rank does `action`; see `faults.fault`."""
    environment = fault(tmp_path, rank, at, action)
    environment["PYTHONPATH"] += os.pathsep + vllm
    return environment


def run_vllm(tmp_path, *arguments, env):
    """Run with vLLM to the end. It starts in 13 seconds of CPU time, which on busy processors are minutes."""
    return CaseRun(tmp_path, [*SHORT, *arguments], isolated=False, case=CASE, env=env).wait(600)


def failed_checks(record):
    """The names of the checks that did not pass."""
    return [check["name"] for check in record["quality"]["checks"] if not check["ok"]]


def segments():
    """The memory that vLLM's workers share on this machine."""
    return {path for path in glob.glob("/dev/shm/*") if "cpushm" in path or "psm_" in path}


@pytest.fixture
def shared_memory(shared_folder):
    """No test beside this one splits an engine, whose workers share memory, and the test leaves none behind."""
    with open(shared_folder / "shared-memory.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = segments()
        yield
        assert segments() <= before


# With the stand-in


def test_a_run_generates_the_tokens_it_counts(tmp_path):
    record = run_case(tmp_path, *TINY, case=CASE, env=paths(STANDIN)).ok(CASE)
    assert record["work"]["tokens_executed"] == 22 * 8 * 16
    assert record["conditions"]["vllm"] == "0.31.0"
    values = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert values["output_tokens_per_second"] == pytest.approx(16 * values["requests_per_second"])
    assert {"latency_p99", "ttft", "tpot", "decode_bandwidth"} <= set(values)


def test_an_engine_that_schedules_ahead_has_an_iteration_for_each_token(tmp_path):
    environment = planted(tmp_path, 0, "before data", "import vllm; vllm.LLMEngine.AHEAD = 1")
    record = run_case(tmp_path, *SHORT, case=CASE, env=environment).ok(CASE)
    assert {"ttft", "tpot"} <= {metric["name"] for metric in record["metrics"]}


def test_two_ranks_are_one_engine(shared_memory, tmp_path):
    with open("/dev/shm/-tp:0-[0-1]-cpushm_0", "x"):  # left by a killed run
        pass
    record = run_case(tmp_path, *SHORT, *TWO_RANKS, case=CASE, env=paths(STANDIN)).ok(CASE)
    assert record["conditions"]["layout"] == "dp1 tp2 pp1"
    assert record["work"]["samples_executed"] == 5 * 8


@pytest.mark.parametrize(
    ("check", "planted_fault"),
    [
        ("no_cached_tokens", "vllm.LLMEngine.CACHED_TOKENS = 16"),
        ("requests_complete", "vllm.LLMEngine.LOST_TOKENS = 1"),
        ("no_preemption", "vllm.LLMEngine.PREEMPTIONS = 1"),
        ("same_results", "vllm.sum = lambda prompt, count=itertools.count(): next(count)"),
        (
            "engine_settings",
            "vllm.describe = lambda asked, real=vllm.describe: real({**asked, 'max_num_seqs': 7})",
        ),
    ],
)
def test_a_run_that_did_other_work_is_invalid(check, planted_fault, tmp_path):
    environment = planted(tmp_path, 0, "before data", "import itertools, vllm; " + planted_fault)
    record = run_case(tmp_path, *SHORT, case=CASE, env=environment).failed(12, "report", check)
    assert failed_checks(record) == [check]
    assert "output_tokens_per_second" in {metric["name"] for metric in record["metrics"]}


def test_another_release_is_refused_before_a_device_is_used(tmp_path):
    environment = planted(tmp_path, 0, "start", "import vllm; vllm.__version__ = '0.32.0'")
    record = run_case(tmp_path, *TINY, case=CASE, env=environment).failed(2, "preflight", "0.32.0")
    assert record["ranks"] == []


def test_graphs_on_a_processor_are_refused_before_it_is_used(tmp_path):
    run = run_case(tmp_path, *TINY, "--set", "cuda_graphs=full", case=CASE, env=paths(STANDIN))
    assert run.failed(2, "preflight", "cuda_graphs")["ranks"] == []


@pytest.mark.parametrize(
    ("device", "compiled", "graphs", "is_refused"),
    [
        ("cpu", True, "full", True),
        ("cuda", False, "piecewise", True),
        ("cuda", False, "full_and_piecewise", True),
        ("cuda", True, "full_and_piecewise", False),
        ("cuda", False, "full_decode_only", False),
        ("cpu", True, "none", False),
    ],
)
def test_graphs_that_vllm_would_replace_are_refused(device, compiled, graphs, is_refused):
    config = {"vllm": {"compile": compiled, "cuda_graphs": graphs}}
    if is_refused:
        with pytest.raises(UsageError, match="cuda_graphs"):
            check_settings(config, device)
    else:
        check_settings(config, device)


def test_a_folder_that_has_the_name_of_vllm_is_none(tmp_path):
    folder = tmp_path / "folder"
    (folder / "vllm").mkdir(parents=True)
    run_case(tmp_path, *TINY, case=CASE, env=paths(str(folder))).failed(2, "preflight", "vLLM cannot be imported")


@pytest.mark.parametrize(
    ("code", "fault_in_setup", "settings"),
    [
        (2, "", ["--set", "max_model_len=31"]),
        (
            2,
            "import pydantic; vllm.LLMEngine.__init__ = lambda *_: pydantic.TypeAdapter(int).validate_python('')",
            [],
        ),
        (5, "vllm.LLMEngine.__init__ = lambda *_: (_ for _ in ()).throw(ValueError('No available memory'))", []),
    ],
)
def test_an_engine_that_does_not_start_is_explained(code, fault_in_setup, settings, tmp_path):
    environment = planted(tmp_path, 0, "before data", "import vllm; " + fault_in_setup)
    run_case(tmp_path, *TINY, *settings, case=CASE, env=environment).failed(code, "data")


def test_a_killed_rank_leaves_nothing(shared_memory, tmp_path):
    run_case(tmp_path, *TINY, *TWO_RANKS, case=CASE, env=planted(tmp_path, 1, 3, KILL)).failed(4, "infer", "rank 1")


def test_an_iteration_that_never_ends_is_a_hang(tmp_path):
    never = "import time, vllm; vllm.LLMEngine.step = lambda self: time.sleep(1000)"
    run_case(tmp_path, *TINY, "--timeout", "5", case=CASE, env=planted(tmp_path, 0, 3, never)).failed(6, "infer")


# With vLLM


@pytest.fixture
def engine():
    """The environment of a run with vLLM itself, or a skipped test."""
    need(os.path.isdir(VLLM), "vLLM (`make .venv/.serving`)")
    return paths(VLLM)


@pytest.mark.serving
def test_ranks_are_workers_of_vllm(engine, shared_memory, tmp_path):
    record = run_vllm(tmp_path, *TWO_RANKS, *WITHOUT_COMPILER, "--steps", "20", env=engine).ok(CASE)
    assert record["conditions"]["vllm"].startswith("0.31.")
    assert list(record["results"][0]["digests"].values()) == [[0, 1]]
    values = {metric["name"] for metric in record["metrics"]}
    assert {"output_tokens_per_second", "ttft", "tpot", "decode_bandwidth"} <= values


@pytest.mark.serving
def test_a_killed_worker_of_vllm_leaves_nothing(engine, shared_memory, tmp_path):
    environment = planted(tmp_path, 1, 3, KILL, VLLM)
    run_vllm(tmp_path, *TWO_RANKS, *WITHOUT_COMPILER, env=environment).failed(4, "infer", "rank 1")


@pytest.mark.serving
def test_vllm_that_did_other_work_is_found_out(engine, tmp_path):
    # Eight prompts of two blocks of 128 tokens, the only ones that vLLM caches. They fill a cache of 16 blocks.
    settings = ["--set", "prefix_caching=true", "--set", "prompt_length=256", "--set", "kv_cache_bytes=4194304"]
    record = run_vllm(tmp_path, *settings, env=engine).failed(12, "report", "no_cached_tokens")
    assert failed_checks(record) == ["no_cached_tokens", "no_preemption"]
    assert {*record["quality"]["absent"]} == {"ttft", "tpot", "decode_bandwidth"}
    assert glob.glob(f"{tmp_path}/vllm*") == []
