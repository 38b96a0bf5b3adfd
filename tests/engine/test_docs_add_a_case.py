"""docs/add-a-case.md, followed literally: a manifest and a folder are a case, and it is trained for real."""

import json
import os
from typing import NamedTuple

import jsonschema
import pytest

from pages import FORMULAS, ROOT, Changes, Checkout, Page, assert_page_tells_all, read_page
from warmup import warm

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.long]

DESCRIBE = "python -m flagbench_cases circle --preset tiny --gpus 2 --describe\n"
RUN = "python -m flagbench_cases circle --preset tiny --nodes 1 --gpus 2\n"


class Followed(NamedTuple):
    """The page, the checkout after it, what changed in it, and what each fence of commands printed."""

    page: Page
    checkout: Checkout
    changes: Changes
    printed: dict[str, str]
    stacks: tuple[str, str]


def stack_digest(checkout: Checkout) -> str:
    """The digest of the heavy tier of the cpu stack."""
    (stack,) = json.loads(checkout.run("flagbench render cpu --json"))["images"]
    return str(stack["digest"])


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page followed to its end."""
    folder, page = tmp_path_factory.mktemp("case"), read_page("add-a-case.md")
    (folder / "spool").mkdir()
    paths = os.pathsep.join((str(ROOT / "builder"), str(folder / "checkout" / "entrypoints")))
    checkout = Checkout(folder, {"TMPDIR": str(folder / "spool"), **warm(paths)})
    before, stack = checkout.state(), stack_digest(checkout)
    printed = dict(checkout.follow(page))
    return Followed(page, checkout, checkout.changes(before), printed, (stack, stack_digest(checkout)))


def test_the_page_names_everything_that_changes(followed: Followed) -> None:
    assert_page_tells_all(followed.page, followed.changes)
    assert FORMULAS in followed.changes.changed
    folder = "entrypoints/flagbench_cases/cases/circle"
    assert followed.page.files == {
        "manifests/cases/circle.yaml",
        "manifests/claims/circle.yaml",
        f"{folder}/__init__.py",
        f"{folder}/workload.py",
    }


def test_the_image_of_a_stack_stays_as_it_is(followed: Followed) -> None:
    before, after = followed.stacks
    assert before == after


def test_the_image_carries_its_own_case_and_no_other_model(followed: Followed) -> None:
    images = json.loads(followed.checkout.run("flagbench render circle:cpu --json"))["images"]
    (case,) = (image for image in images if image["name"] == "circle/cpu")
    cases = {path.split("/")[2] for path in case["files"] if path.startswith("flagbench_cases/cases/")}
    assert cases == {"__init__.py", "circle", "roofs"}  # what --roofs measures


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
    assert 0.9 < metrics["recall"] <= 1  # the page's example of a metric of its own
    assert metrics["p_core"] > 0
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
