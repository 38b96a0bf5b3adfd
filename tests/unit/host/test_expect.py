"""`flagbench expect`: rows and nearest rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.console.page import Table
from flagbench.expect.answer import find_device, find_published
from flagbench.expect.page import results_page
from flagbench.expect.rows import cited_rows, cited_rows_for
from flagbench.manifests.load import load_catalog
from flagbench.manifests.rows import PublishedValue, published_rows
from flagbench.records.read import read_record
from unit.host.conftest import Flagbench

ROWS = published_rows(CATALOG)


def ask(model: str, on: str, gpus: int | None = None) -> dict[str, Any]:
    return find_published(model, on, gpus, CATALOG).to_dict()


@pytest.mark.parametrize(
    ("asked", "model", "device"),
    [
        ("llama2-70b", "llama2-70b", "h200-sxm"),
        ("llama2-70b", "llama2-70b", "mi300x"),
        ("distilbert", "distilbert-base-uncased", "a100-sxm-40gb"),
        ("distilbert", "distilbert-base-uncased", "l40s"),
        ("llama3.2-3b", "llama3.2-3b", "l40s"),
        ("roofs", "matmul", "h100-sxm"),
    ],
)
def test_rows_are_those_of_the_model_on_the_device(asked: str, model: str, device: str) -> None:
    rows = {row.id for row in ROWS if (row.model, row.device_id) == (model, device)}
    assert {row["id"] for row in ask(asked, device, 8)["rows"]} == rows


def test_rows_of_one_device_are_near_another() -> None:
    nearest = [row["id"] for row in ask("llama3-8b", "h200-sxm", 8)["nearest"]]
    assert {f"llama3-8b/h100-{nodes}x8-{precision}" for nodes in (1, 2) for precision in ("bf16", "fp8")} < {*nearest}


def test_nearest_rows_say_what_differs() -> None:
    told = ask("llama2-70b", "h200-sxm", 8)
    nearest = {row["id"]: {d["name"]: (d["here"], d["published"]) for d in row["differs"]} for row in told["nearest"]}
    assert nearest["llama2-70b/h800-4x8-amp-tp4-pp8"] == {
        "device": ("h200-sxm", "h800-sxm"),
        "devices": (8, 32),
        "tp": (8, 4),
        "pp": (4, 8),
    }
    assert nearest["llama2-70b/h800-4x8-amp-tp4-pp8-gas1024"]["gradient_accumulation_steps"] == (44, 1024)
    other_task = {d["name"] for row in told["rows"] for d in row["differs"]}
    assert {"task", "sequence"} <= other_task
    assert [*told["cases"]] == ["llama2-70b"]


def test_a_model_shows_the_nearest_row_of_each_task_first(flagbench: Flagbench) -> None:
    lines = flagbench("expect llama3.1-8b --on h100-sxm").out.splitlines()[3:]
    tasks = [row.task for row in ROWS if row.model == "llama3.1-8b"]
    firsts = lines[: len(set(tasks))]
    assert "H100 SXM" in firsts[0]
    for task in set(tasks):
        assert sum(f" {task} " in line for line in firsts) == 1
    assert lines[len(firsts)].startswith("vllm-ci/19")  # then those of further projects on the device
    (left,) = (line for line in lines if line.startswith("rows that --wide adds: "))
    assert int(left.rpartition(" ")[2]) == len(tasks) - 8


def test_a_case_shows_the_rows_of_its_task_first() -> None:
    found = find_published("llama2-70b", "h200-sxm", 8, CATALOG)
    assert {row.task for row in found.rows_of_other_devices} == {"pretraining"}
    table = results_page(found, wide=False)[1]
    assert isinstance(table, Table)
    assert table.rows[0][3] == "pretraining"


def test_a_case_named_after_a_model_runs_it() -> None:
    cases = find_published("llama3.1-8b", "h100-sxm", None, CATALOG).cases
    assert cases == ("llama3.1-8b-lora", "serve-llama3.1-8b")


def test_a_case_that_took_more_memory_is_not_offered(flagbench: Flagbench) -> None:
    small = flagbench("expect llama3.1-8b --on rtx-4090")
    assert "73.3 GiB" in small.out
    assert "24 GiB" in small.out
    cases = flagbench("expect llama3.1-8b --on rtx-4090 --json").json["cases"]
    assert cases == ["serve-llama3.1-8b"]  # an engine takes what there is
    # Its layout on eight devices took more than these have; another one was published for them.
    metax = flagbench("expect llama3-8b --on c500-oam --gpus 8")
    assert "71 GiB" in metax.out
    assert "flagbench reproduce llama3-8b/c500-1x8-bf16" in metax.out
    assert "llama3-8b" not in flagbench("expect llama3-8b --on c500-oam --gpus 8 --json").json["cases"]


def test_a_case_is_run_by_cases_of_its_task() -> None:
    """The LoRA of Llama 3.1 8B is no pretraining of its model, which needs more memory."""
    small = find_published("llama3.1-8b-lora", "rtx-4090", 1, CATALOG)
    assert small.cases == ()
    assert len(small.too_large) == 1
    assert find_published("llama3.1-8b-lora", "h100-sxm", 1, CATALOG).cases == ("llama3.1-8b-lora",)
    assert find_published("llama3-8b", "h100-sxm", 8, CATALOG).cases == ("llama3-8b", "llama3-8b-rope")


def test_where_nothing_was_measured_the_memory_of_a_split_model_can_be_computed(flagbench: Flagbench) -> None:
    (note,) = find_published("llama3-8b-rope", "rtx-4090", 4, CATALOG).to_plan
    command = note.split("`")[1]
    assert flagbench(command.removeprefix("flagbench ")).code == 5  # no layout of four fits into 24 GiB
    assert find_published("distilbert", "rtx-4090", 1, CATALOG).to_plan == ()


def test_a_row_that_may_be_of_the_device_comes_first() -> None:
    first = ask("roofs", "a100-sxm-80gb", 1)["nearest"][0]
    assert (first["device"], first["device_id"], first["differs"]) == ("NVIDIA A100 SXM", None, [])
    assert set(first["may_be"]) == {"a100-sxm-40gb", "a100-sxm-80gb"}


def test_all_rows_that_may_be_of_the_device_are_shown(flagbench: Flagbench) -> None:
    told = ask("llama3-8b", "h100-sxm", 8)
    may_be = [row["id"] for row in told["nearest"] if "h100-sxm" in row["may_be"]]
    assert may_be == ["flagperf/8"]
    claims = {f"llama3-8b/h100-{nodes}x8-{precision}" for nodes in (1, 2) for precision in ("bf16", "fp8")}
    assert claims <= {row["id"] for row in told["rows"]}
    shown = flagbench("expect llama3-8b --on h100-sxm --gpus 8").out
    assert "llama3-8b/h100-1x8-bf16" in shown.splitlines()[0]  # no number without its source
    assert "flagperf/8 " in shown
    assert "DGX-B200" not in shown


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("h200", "h200-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("b300", "b300-sxm"),
        ("NVIDIA L40S", "l40s"),
        ("mi300x", "mi300x"),
    ],
)
def test_names_of_devices(name: str, device: str) -> None:
    assert find_device(name, CATALOG).id == device


@pytest.mark.parametrize(
    "typed", ["llama2-70b --on h100", "llama2-70b --on a100", "llama2-70b --on hal9000", "lama2-70b --on h200"]
)
def test_unknown_names(flagbench: Flagbench, typed: str) -> None:
    done = flagbench(f"expect {typed}")
    assert done.code == 2
    assert "did you mean" in done.err or "hal9000" in typed
    assert "did you mean a100-" in done.err or "a100" not in typed
    assert "h100-sxm" in done.err or "h100" not in typed
    assert "list models" not in done.err  # no such list


def test_a_narrow_terminal_shows_what_a_number_is_of(flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    shown = flagbench("expect llama3-8b --on h100-sxm --gpus 8").out.splitlines()
    assert any({"ROW", "GPUS", "PRECISION", "PUBLISHED"} <= set(line.split()) for line in shown)
    assert any("device: NVIDIA H100 80GB HBM3" in line for line in shown)
    assert all(len(line) <= 80 for line in shown)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_narrow_terminal_shows_every_condition_that_differs(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    shown = flagbench("expect distilbert --on h100-sxm").out
    (row,) = (row for row in ask("distilbert", "h100-sxm")["nearest"] if row["id"] == "distilbert/c500-1x8-fp32")
    of_row = " ".join(shown.partition(row["id"])[2].partition("distilbert/c500-1x1-fp32")[0].split())
    assert f"differs: {', '.join(each['name'] for each in row['differs'])}" in of_row
    assert "MetaX C500 (OAM)" in of_row


def test_a_rate_of_its_own_definition_is_named(flagbench: Flagbench) -> None:
    rows = {row["id"]: row for row in ask("roofs", "a100-sxm-40gb", 8)["rows"]}
    assert rows["roofs/a100-1x8-fp64"]["precision"] == "fp64"  # of its product, not of the run's short one
    shown = flagbench("expect roofs --on a100-sxm-40gb --gpus 8").out
    assert "reproduce roofs/a100-1x8-" in shown  # which sets its shape
    assert {"matmul_fp64_mean", "memory_bandwidth_mean", "all_reduce_mean"} <= set(shown.split())


def test_speed_of_all_devices_is_a_speed() -> None:
    speeds = {row.id: row.speed for row in ROWS}
    assert speeds["torchtune/1"] == PublishedValue("tokens_per_second", 1650, "tokens/s")


def test_rows_of_an_engine_name_its_release_or_that_none_is_stated(flagbench: Flagbench) -> None:
    lines = flagbench("expect llama3.1-8b --on h100-sxm --wide").out.splitlines()
    (release,) = (line for line in lines if line.startswith("tensorrt-llm-1.0/2 "))
    assert "TensorRT-LLM 1.0" in release
    without_release, details = (line for line in lines if line.startswith(("vllm-ci/19 ", "vllm-ci/19:")))
    assert "latency_mean 0.997542 s" in without_release
    assert "vLLM, release not stated" in without_release
    assert "may carry another build's numbers" in details


def test_rows_of_equal_lengths_and_batches_are_nearest_a_case_that_generates() -> None:
    found = find_published("serve-llama3.1-8b", "h100-sxm", 1, CATALOG)
    assert found.wanted["sequence"] == "in/out 32/128"
    assert found.candidate_rows[0].id == "vllm-ci/19"  # whose name of the device is that of two
    rows = cited_rows(CATALOG.cases["serve-llama3.1-8b"], {**found.wanted, "device": "h200-sxm"}, CATALOG)
    assert [row.id for row in rows] == ["vllm-ci/1", "vllm-ci/7"]  # by their latency


def test_command(flagbench: Flagbench) -> None:
    done = flagbench("expect llama2-70b --on h200 --gpus 8")
    assert done.code == 0
    assert done.out.splitlines()[0].endswith(".")
    ours = flagbench("expect llama3.1-8b --on h100-sxm --wide").out.splitlines()[3]  # before the rows of others
    assert ours.split()[1:3] == ["H100", "SXM"]
    told = flagbench("expect llama2-70b --on h200 --gpus 8 --json").json
    assert told["device"] == "h200-sxm"
    assert told["wanted"] == {
        "device": "h200-sxm",
        "devices": 8,
        "task": "pretraining",
        "precision": "bf16",
        "sequence": 4096,
        "micro_batch": 1,
        "gradient_accumulation_steps": 44,
        "tp": 8,
        "pp": 4,
    }


MEASURED = {
    **{"device_model": "NVIDIA H100 80GB HBM3", "model": "llama3.1-8b", "sequence_length": 4096, "batch_size": 2},
    **{"gradient_accumulation_steps": 16, "precision": "bf16"},
}
RUNS = Path(__file__).parents[2] / "replay" / "records"


@pytest.mark.parametrize(
    ("record", "conditions", "found"),
    [
        ("run-lora-llama3.1", MEASURED, ["automodel/11"]),
        *(
            ("run-lora-llama3.1", {**MEASURED, name: other}, [])
            for name, other in [
                ("device_model", "NVIDIA H200"),
                ("devices", 2),
                ("precision", "tf32"),
                ("sequence_length", 2048),
                ("batch_size", 1),
                ("model", "llama3.1-tiny"),
            ]
        ),
        ("run-lora-1", MEASURED, []),
    ],
)
def test_a_reference_is_of_the_same_work(record: str, conditions: Any, found: list[str], only_cited: Path) -> None:
    raw = json.loads((RUNS / f"{record}.json").read_text(encoding="utf-8"))
    raw["conditions"].update(conditions)
    rows = cited_rows_for(read_record(json.dumps(raw).encode()), load_catalog(only_cited))
    assert [row.id for row in rows] == found


def test_a_case_with_claims_has_no_reference() -> None:
    raw = json.loads((RUNS / "run-lora-llama3.1.json").read_text(encoding="utf-8"))
    raw["conditions"].update(MEASURED)
    assert cited_rows_for(read_record(json.dumps(raw).encode()), CATALOG) == []
