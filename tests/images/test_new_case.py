"""The case that docs/add-a-case.md adds, in an image on the stack's that was there before."""

import json
import os

import jsonschema
import pytest

from pages import FORMULAS, Checkout, read_page

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def built(tmp_path, cpu_image):
    """What `flagbench build` says of the case, built in a copy of the checkout with the files that the page shows."""
    options = {name: value for name, value in os.environ.items() if name.startswith("FLAGBENCH_")}
    options.pop("FLAGBENCH_MANIFESTS", None)
    checkout = Checkout(tmp_path, options)
    for path, text in read_page("add-a-case.md").steps:
        if path is not None:
            (checkout.root / path).parent.mkdir(parents=True, exist_ok=True)
            (checkout.root / path).write_text(text, encoding="utf-8")
        elif FORMULAS in text:
            checkout.run(text)
    told = json.loads(checkout.run("flagbench build circle:cpu --json"))["images"][0]
    yield told
    for tag in told["tags"]:
        checkout.run("docker image rm %s" % tag)


def test_a_second_case_adds_its_code_alone_to_the_stack_s_image(
    built, docker_engine, docker_client, start, record_schema
):
    assert [tier["skipped"] for tier in built["tiers"]] == [True, False], "the stack's image was there"
    image, stack = (docker_engine.inspect("flagbench/%s:cpu" % name) for name in ("circle", "stack"))
    assert image.layers[: len(stack.layers)] == stack.layers
    assert len(image.layers) == len(stack.layers) + 2, "core, and the case"
    larger, size = (docker_client.api.inspect_image(each.id)["Size"] for each in (image, stack))
    assert larger - size < size / 100

    run = start("--nodes", "1", "--gpus", "2", "--preset", "tiny", image="flagbench/circle:cpu")
    assert run.wait() == 0, run.stderr
    record = run.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (record["case"], record["status"]["state"], record["quality"]["converged"]) == ("circle", "ok", True)
    assert len(record["ranks"]) == 2
    assert all(check["ok"] for check in record["quality"]["checks"]), record["quality"]["checks"]
