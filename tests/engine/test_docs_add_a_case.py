"""docs/add-a-case.md, followed literally: a manifest and a folder are a case, and it is trained for real."""

import json
import os
from typing import NamedTuple

import jsonschema
import pytest

from pages import ROOT, Changes, Checkout, Page, assert_page_tells_all, read_page
from warmup import warm

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.long]

DESCRIBE = "python -m flagbench_cases circle --preset tiny --gpus 2 --describe\n"
INFER = "python -m flagbench_cases successor --preset tiny %s\n"
RUN = "python -m flagbench_cases circle --preset tiny --nodes 1 --gpus 2\n"


class Followed(NamedTuple):
    """The page, the checkout after it, what changed in it, and what each fence of commands printed."""

    page: Page
    checkout: Checkout
    changes: Changes
    printed: dict[str, str]
    others: tuple[dict[str, str], dict[str, str]]


def digests(checkout: Checkout) -> dict[str, str]:
    """The digest of both tiers of an image that was there before, by its name."""
    images = json.loads(checkout.run("flagbench render distilbert:cpu --json"))["images"]
    return {image["name"]: image["digest"] for image in images}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page followed to its end."""
    folder, page = tmp_path_factory.mktemp("case"), read_page("add-a-case.md")
    (folder / "spool").mkdir()
    paths = os.pathsep.join((str(ROOT / "builder"), str(folder / "checkout" / "entrypoints")))
    checkout = Checkout(folder, {"TMPDIR": str(folder / "spool"), **warm(paths)})
    before, others = checkout.state(), digests(checkout)
    printed = dict(checkout.follow(page))
    return Followed(page, checkout, checkout.changes(before), printed, (others, digests(checkout)))


def test_the_page_names_everything_that_changes(followed: Followed) -> None:
    assert_page_tells_all(followed.page, followed.changes)
    folders = [f"entrypoints/flagbench_cases/cases/{case}" for case in ("circle", "successor")]
    assert followed.page.files == {
        "manifests/cases/circle.yaml",
        "manifests/cases/successor.yaml",
        *(f"{folder}/__init__.py" for folder in folders),
        *(f"{folder}/workload.py" for folder in folders),
    }


def test_images_of_other_cases_stay_as_they_are(followed: Followed) -> None:
    before, after = followed.others
    assert before == after


def test_the_image_carries_its_own_case_alone(followed: Followed) -> None:
    images = json.loads(followed.checkout.run("flagbench render circle:cpu --json"))["images"]
    (case,) = (image for image in images if image["name"] == "circle/cpu")
    cases = {path.split("/")[2] for path in case["files"] if path.startswith("flagbench_cases/cases/")}
    assert cases == {"__init__.py", "circle"}


def test_the_configuration_is_described(followed: Followed) -> None:
    described = json.loads(followed.printed[DESCRIBE])
    assert described["config"]["train"]["window_steps"] is None
    assert described["config"]["model"] == {"name": "circle-64", "hidden": 64}


def test_it_trains_until_the_target_is_reached(followed: Followed, record_schema) -> None:
    (line,) = followed.printed[RUN].splitlines()
    record = json.loads(line)
    jsonschema.validate(record, record_schema)
    assert record["status"]["state"] == "ok"
    assert record["quality"]["converged"] is True
    assert [check["name"] for check in record["quality"]["checks"] if not check["ok"]] == []
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert metrics["acc"] >= 0.97
    assert metrics["p_core"] > 0
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]


def test_a_window_is_measured_on_synthetic_data(followed: Followed, tmp_path) -> None:
    printed = followed.checkout.run(
        "python -m flagbench_cases circle --preset tiny --data synthetic --set batch_size=32"
    )
    record = json.loads(printed)
    assert record["window"]["steps"] == record["config"]["train"]["window_steps"]
    assert record["work"]["samples_executed"] == 32 * record["work"]["steps"]


def test_its_job_is_sound(followed: Followed) -> None:
    followed.checkout.run("flagbench job circle:cpu --for kubernetes --gpus 2 | flagbench job --check -")


@pytest.mark.parametrize(
    ("options", "layout"),
    [("--gpus 2", (1, 2, 1)), ("--gpus 4", (2, 2, 1)), ("--set tp=1", (1, 1, 1))],
)
def test_a_model_that_is_split_scores_as_a_whole_one(
    followed: Followed, record_schema, options: str, layout: tuple[int, int, int]
) -> None:
    record = json.loads(followed.printed[INFER % options])
    jsonschema.validate(record, record_schema)
    assert record["status"]["state"] == "ok"
    assert tuple(record["layout"][axis] for axis in ("dp", "tp", "pp")) == layout
    assert {check["name"] for check in record["quality"]["checks"] if check["ok"]} >= {
        "precision",
        "rates_in_order",
        "steps",
        "evaluated",
        "above_chance",
    }
    metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
    whole = {m["name"]: m["value"] for m in json.loads(followed.printed[INFER % "--set tp=1"])["metrics"]}
    assert metrics["acc"] == whole["acc"] > 0.85
    assert metrics["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert all(metrics[name] > 0 for name in ("p_infer_core", "p_infer_whole", "p_val_core", "p_val_whole"))
    # One rank of each replica counts.
    assert record["work"]["tokens_executed"] == 256 * 64


def test_an_inference_run_that_is_ended_leaves_a_valid_record(followed: Followed, record_schema) -> None:
    endless = "python -m flagbench_cases successor --preset tiny --set tp=1 --steps 1000000 --max-minutes 0.1"
    record = json.loads(followed.checkout.run(f"{endless} || test $? -eq 6"))
    jsonschema.validate(record, record_schema)
    assert (record["status"]["exit_code"], record["status"]["phase"]) == (6, "infer")
    assert record["window"]["steps"] > 0
    assert {"p_infer_core", "p_infer_core_host"} <= {metric["name"] for metric in record["metrics"]}


def test_ranks_that_hold_no_whole_replica_are_refused(followed: Followed) -> None:
    printed = followed.checkout.run("python -m flagbench_cases successor --preset tiny --gpus 3 || test $? -eq 2")
    assert json.loads(printed)["status"]["exit_code"] == 2


def test_its_run_is_shown_before_it_begins(followed: Followed) -> None:
    words = "flagbench run successor:cpu --preset tiny --gpus 2 --via native --dry-run"
    shown = json.loads(followed.checkout.run(f"{words} --json"))
    assert shown["config"]["infer"]["window_steps"] is None
    assert followed.checkout.run(words)


def test_a_window_is_of_the_measured_pass_alone(followed: Followed) -> None:
    record = json.loads(
        followed.checkout.run("python -m flagbench_cases successor --preset tiny --gpus 2 --steps 40")
    )
    assert (record["window"]["steps"], record["work"]["steps"]) == (40, 42)
    assert {m["name"] for m in record["metrics"]} >= {"p_infer_core", "p_infer_core_host"}
    assert not any(m["name"].startswith(("p_val", "p_infer_whole", "e2e")) for m in record["metrics"])
