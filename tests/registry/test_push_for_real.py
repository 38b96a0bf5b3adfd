"""Images pushed to a real registry and pulled from it, with the engine's own client."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flagbench.cli import main
from flagbench.images.docker_errors import BuildFailed, EngineError
from flagbench.images.push import find_local_image, push_to_registry
from flagbench.images.tags import TAG_VERSION
from flagbench_core.exit_codes import ExitCode
from registries import Bench, Registry, own_stack

pytest_plugins = ["containers", "registries"]
pytestmark = pytest.mark.docker

DOCKERFILE = "FROM scratch\nCOPY code /code\n"


@pytest.fixture
def image(bench: Bench) -> str:
    """An image that no registry has."""
    return bench.build("case:1", DOCKERFILE, {"code": os.urandom(1000)})


def test_a_pushed_image_comes_back(bench: Bench, registry: Registry, image: str) -> None:
    moving, other = (f"{bench.name}/case:{tag}" for tag in ("moving", "other"))
    bench.engine.tag(image, moving)
    bench.engine.tag(bench.build("other:1", DOCKERFILE, {"code": b"2"}), other)
    place = f"{registry.host}/{bench.name}/case"
    pushed = push_to_registry(find_local_image(image, (moving, other), bench.engine), place, bench.engine, None)
    assert pushed.tags == ("1", "moving"), "a name of another image is not pushed"
    assert f"{place}@{pushed.digest}" in bench.engine.inspect(image).repo_digests
    bench.remove(pushed.image_id)
    for reference in (f"{place}:1", f"{place}:moving", f"{place}@{pushed.digest}"):
        subprocess.run(["docker", "pull", "-q", reference], check=True, capture_output=True)
        assert bench.engine.inspect(reference).id == pushed.image_id
        bench.remove(pushed.image_id)


@pytest.mark.parametrize("account", ["none", "wrong"])
def test_without_an_account_nothing_is_pushed(account: str, bench: Bench, registry: Registry, image: str) -> None:
    if account == "none":
        registry.log_out()
    else:
        registry.log_in(password="hunter2-wrong")
    with pytest.raises(EngineError) as caught:
        push_to_registry(
            find_local_image(image, (), bench.engine), f"{registry.host}/{bench.name}/x", bench.engine, None
        )
    assert f"docker login {registry.host}" in caught.value.remedy
    assert "hunter2" not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("host", ["127.0.0.1:1", "registry.invalid"])
def test_a_registry_that_is_not_there(host: str, bench: Bench, image: str) -> None:
    with pytest.raises(EngineError) as caught:
        push_to_registry(find_local_image(image, (), bench.engine), f"{host}/{bench.name}/case", bench.engine, None)
    assert caught.value.code is ExitCode.ENGINE
    assert host in caught.value.message


def test_the_command(
    bench: Bench,
    registry: Registry,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifests, stack = own_stack(bench, tmp_path, image)
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    to, place = f"{registry.host}/{bench.name}", f"{registry.host}/{bench.name}/flagbench/distilbert"

    def push(*words: str) -> tuple[int, Any]:
        return main.run(["push", f"distilbert:{stack}", "--to", *words]), capsys.readouterr()

    code, shown = push(to)
    assert code == 0, shown.err
    assert "Pushed" in shown.err
    *tags, digest = shown.out.splitlines()
    assert tags == [f"{place}:{stack}-{TAG_VERSION}", f"{place}:{stack}"]
    code, shown = push(to, "--json")
    assert (code, shown.err) == (0, "")
    answer = json.loads(shown.out)
    assert f"{answer['place']}@{answer['digest']}" == digest
    assert answer["image_id"] == bench.engine.inspect(image).id
    for words in ((to, "--public"), ("https://registry.example",), ("docker.io/team",)):
        assert push(*words)[0] == ExitCode.USAGE
    bench.engine.tag(bench.build("other:1", DOCKERFILE, {"code": b"1"}, base="vendor.example/base:1"), tags[0])
    bench.engine.tag(tags[0], f"flagbench/distilbert:{stack}-{TAG_VERSION}")
    assert push(to)[0] == ExitCode.USAGE, "nothing is known of that base's licence"
    assert push(to, "--i-may-redistribute")[0] == 0


def test_a_private_base_is_pulled_by_the_build(bench: Bench, registry: Registry, image: str) -> None:
    place = f"{registry.host}/{bench.name}/base"
    digest = push_to_registry(find_local_image(image, (), bench.engine), place, bench.engine, None).digest
    bench.remove(bench.engine.inspect(image).id)
    on_base = f"FROM {place}@{digest}\nCOPY code /more\n"
    registry.log_out()
    with pytest.raises(BuildFailed) as caught:
        bench.build("other:1", on_base, {"code": b"1"})
    assert "docker login" in caught.value.remedy
    registry.log_in()
    assert len(bench.engine.inspect(bench.build("other:1", on_base, {"code": b"1"})).layers) == 2
