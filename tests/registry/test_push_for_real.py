"""`flagbench push` into a real registry: what is sent, what comes back, and what happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.build.tiers import VERSION
from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Redistribution
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.known import Known
from flagbench.oci.model import digest_of
from flagbench.oci.referrers import referrers_tag
from flagbench.oci.registry import RegistryPlace
from registries import CREATED, EPOCH, Bench, Proxy, files_of, own_stack
from running import wait_until

pytest_plugins = ["containers", "registries"]
pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
RESTRICTED = Redistribution("restricted", "because its licence says so", None)


@pytest.fixture
def base(bench: Bench) -> dict[str, str]:
    """A base of two layers in the registry, as labels of what stands on it."""
    name = f"{bench.registry.host}/{bench.name}/base"
    dockerfile = "FROM scratch\nCOPY one /one\nCOPY two /usr/two\n"
    made = bench.build("base:1", dockerfile, 0, {"one": os.urandom(40_000), "two": b"two\n" * 9})
    bench.engine.tag(made, f"{name}:1")
    bench.run_docker("push", "-q", f"{name}:1")
    (digest,) = bench.engine.inspect(f"{name}:1").repo_digests
    return {
        "org_opencontainers_image_base_name": f"{name}:1",
        "org_opencontainers_image_base_digest": digest.partition("@")[2],
    }


def build_case(bench: Bench, base: dict[str, str], image: str = "case:1", content: bytes = b"case\n") -> str:
    """A case's image on that base."""
    name = base["org_opencontainers_image_base_name"]
    dockerfile = f"FROM {name}\nCOPY code /flagbench/code\nENV FLAGBENCH_CONTEXT_DIGEST=sha256:c\n"
    return bench.build(image, dockerfile, 2, {"code": content}, **base)


def manifest_of(place: RegistryPlace, reference: str) -> dict[str, Any]:
    """A manifest in the registry."""
    found = place.read_manifest(reference)
    assert found is not None
    return json.loads(found[0])


def test_a_pushed_image_is_the_one_in_the_engine_and_comes_back(bench: Bench, base: dict[str, str]) -> None:
    image = build_case(bench, base)
    before = bench.engine.inspect(image)
    bench.engine.tag(image, f"{bench.name}/case:moving")
    place = bench.place()
    # A base of the very registry is not redistributed, whatever its licence.
    stack = replace(load_catalog(claims=False).stacks["cpu"], base_redistribution=RESTRICTED)
    pushed = bench.push(image, aliases=(f"{bench.name}/case:moving", f"{bench.name}/base:1"), stack=stack)

    assert pushed.tags == ("1", "moving"), "a name of another image is not pushed"
    manifest = manifest_of(place, pushed.digest)
    assert manifest == manifest_of(place, "1") == manifest_of(place, "moving")
    own = bench.place("base")
    of_base = manifest_of(own, base["org_opencontainers_image_base_digest"])
    assert [x["digest"] for x in manifest["layers"][:2]] == [x["digest"] for x in of_base["layers"]]
    assert [each.how for each in pushed.blobs] == ["copied", "copied", "uploaded", "uploaded"]

    here = bench.engine.inspect(image)
    assert here.id == pushed.config_digest == manifest["config"]["digest"] != before.id
    assert bench.engine.inspect(f"{bench.name}/case:moving").id == here.id
    assert (pushed.replaced, here.labels, here.env) == (before.id, before.labels, before.env)
    assert here.layers[:2] == before.layers[:2], "the base's layers are kept"
    assert any("loaded back" in note for note in bench.report.notes)
    assert bench.docker.images.get(image).attrs["Created"] == CREATED

    files = files_of(bench.engine, image)
    assert files["flagbench/code"][0] == b"case\n"
    assert max(changed for _, changed in files.values()) <= EPOCH
    bench.remove(
        image, f"{bench.name}/case:moving", f"{bench.name}/base:1", base["org_opencontainers_image_base_name"]
    )
    for reference in (f"{place.url}:1", f"{place.url}@{pushed.digest}"):
        bench.run_docker("pull", "-q", reference)
        assert bench.engine.inspect(reference).id == pushed.config_digest
        assert pushed.reference in bench.engine.inspect(reference).repo_digests
        assert files_of(bench.engine, reference) == files
        bench.remove(reference)


def test_a_second_push_reads_nothing_and_sends_nothing(
    bench: Bench, base: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build_case(bench, base)
    first = bench.push(image)
    monkeypatch.setattr(bench.engine, "save", lambda *names: pytest.fail("the image was read"))
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        again = bench.push(image)
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 2, "the best of three, because other tests run beside"
    assert {each.how for each in again.blobs} == {"present"}
    assert (again.digest, again.replaced, again.sent) == (first.digest, None, 0)
    assert Known().pushed_as(bench.engine.inspect(image).id) == first.reference
    # Another repository of the same registry gets its layers from the first.
    elsewhere = bench.push(image, bench.place("elsewhere"))
    assert {each.how for each in elsewhere.blobs} == {"copied", "uploaded"}
    assert elsewhere.sent < 5000, "its configuration"
    assert elsewhere.digest == first.digest


def test_what_is_forgotten_or_deleted_costs_nothing_but_time(
    bench: Bench, base: dict[str, str], tmp_path: Path
) -> None:
    image = build_case(bench, base)
    first = bench.push(image)
    for file in (tmp_path / "data").rglob("*.json"):
        file.write_bytes(b"damaged")
    again = bench.push(image)
    assert (again.digest, again.replaced) == (first.digest, None)
    # The registry lost a layer and the manifests: what is remembered is outdated.
    place = bench.place()
    ours = again.blobs[2].blob.digest
    for path in (f"blobs/{ours}", f"manifests/{first.digest}"):
        assert place._client.ask("DELETE", f"{place._client.base}/{path}", writes=True).status_code == 202
    assert not place.has_blob(ours)
    third = bench.push(image)
    assert third.digest == first.digest
    assert place.has_blob(ours)


def test_a_second_case_sends_its_own_layer_alone(bench: Bench, base: dict[str, str]) -> None:
    dockerfile = f"FROM {base['org_opencontainers_image_base_name']}\nCOPY heavy /opt/heavy\n"
    stack = bench.build("stack:1", dockerfile, 2, {"heavy": os.urandom(3_000_000)}, **base)
    cases = [
        bench.build(f"{name}:1", f"FROM {stack}\nCOPY code /c/code\n", 2, {"code": name.encode()}, **base)
        for name in ("first", "second")
    ]
    first = bench.push(cases[0], bench.place("first"), below="stack:1")
    on_stack = bench.engine.inspect(stack)
    assert bench.engine.inspect(cases[0]).layers[: len(on_stack.layers)] == on_stack.layers, "both were normalised"
    second = bench.push(cases[1], bench.place("second"), below="stack:1")
    assert second.sent < first.sent / 100
    # One that is built on the stack's image as it is now needs no stack of its own.
    third = bench.build("third:1", f"FROM {stack}\nCOPY code /c/code\n", 2, {"code": b"third"}, **base)
    assert bench.push(third, bench.place("third"), below="stack:1").sent < first.sent / 100


def test_documents_about_an_image_are_found_from_it(bench: Bench, base: dict[str, str], tmp_path: Path) -> None:
    image, place = build_case(bench, base), bench.place()
    sbom = tmp_path / "sbom.json"
    sbom.write_text('{"bomFormat": "CycloneDX"}')
    pushed = bench.push(image, sbom_of=lambda name, before, now: sbom)
    listed = manifest_of(place, referrers_tag(pushed.digest))["manifests"]
    assert {entry["artifactType"]: entry["digest"] for entry in listed} == pushed.referrers
    document = manifest_of(place, pushed.referrers["application/vnd.cyclonedx+json"])
    assert document["subject"]["digest"] == pushed.digest
    assert b"".join(place.read_blob(document["layers"][0]["digest"])) == sbom.read_bytes()
    statement = manifest_of(place, pushed.referrers["application/vnd.in-toto+json"])
    content = json.loads(b"".join(place.read_blob(statement["layers"][0]["digest"])))
    assert content["subject"][0]["digest"] == {"sha256": pushed.digest.partition(":")[2]}
    bench.push(image, sbom_of=lambda name, before, now: sbom)
    assert manifest_of(place, referrers_tag(pushed.digest))["manifests"] == listed


def test_a_base_of_another_registry_is_copied_as_it_is_there(bench: Bench, base: dict[str, str]) -> None:
    """The same registry by another name, of which it does not take layers."""
    port = bench.registry.host.partition(":")[2]
    bench.registry.log_in(f"localhost:{port}")
    there = base["org_opencontainers_image_base_name"].replace("127.0.0.1", "localhost")
    image = build_case(bench, base | {})
    image = bench.build("copy:1", f"FROM {image}\n", 2, **{**base, "org_opencontainers_image_base_name": there})
    stack = load_catalog(claims=False).stacks["cpu"]
    with pytest.raises(FlagbenchError) as caught:
        bench.push(image, stack=replace(stack, base_image=there, base_redistribution=RESTRICTED))
    assert caught.value.code is ExitCode.USAGE
    assert there in caught.value.message
    assert bench.place().read_manifest("1") is None
    pushed = bench.push(image, stack=replace(stack, base_redistribution=RESTRICTED), may_redistribute=True)
    assert [each.how for each in pushed.blobs][:2] == ["uploaded", "uploaded"]
    of_base = manifest_of(bench.place("base"), base["org_opencontainers_image_base_digest"])
    assert [x["digest"] for x in manifest_of(bench.place(), "1")["layers"]][:2] == [
        x["digest"] for x in of_base["layers"]
    ]


def test_a_base_without_a_registry_is_compressed_and_needs_a_licence(bench: Bench, debian: str) -> None:
    image = bench.build(
        "case:1",
        f"FROM {debian}\nRUN echo made > /made && mkdir /d && ln /made /d/hard && ln -s /made /d/soft\n",
        len(bench.engine.inspect(debian).layers),
        org_opencontainers_image_base_name=debian,
    )
    stack = load_catalog(claims=False).stacks["cpu"]
    with pytest.raises(FlagbenchError) as caught:
        bench.push(image, stack=replace(stack, base_redistribution=RESTRICTED))
    assert caught.value.code is ExitCode.USAGE
    pushed = bench.push(image)
    before = bench.engine.inspect(debian).layers
    assert bench.engine.inspect(image).layers[: len(before)] == before
    reference = f"{bench.place().url}:1"
    bench.run_docker("pull", "-q", reference)
    assert bench.engine.inspect(reference).id == pushed.config_digest
    seen = bench.run_docker("run", "--rm", reference, "sh", "-c", "cat /d/soft /d/hard; stat -c %Y.%h /made")
    assert seen.split() == ["made", "made", f"{EPOCH}.2"]
    # The base is there now: nothing of it would be sent.
    assert bench.push(image, stack=replace(stack, base_redistribution=RESTRICTED)).sent == 0


def test_zstd(bench: Bench, base: dict[str, str]) -> None:
    pytest.importorskip("zstandard")
    image = build_case(bench, base)
    gzip = bench.push(image)
    zstd = bench.push(image, compression="zstd")
    assert zstd.config_digest == gzip.config_digest == bench.engine.inspect(image).id
    kinds = [layer["mediaType"].rpartition("+")[2] for layer in manifest_of(bench.place(), zstd.digest)["layers"]]
    assert kinds == ["gzip", "gzip", "zstd"]
    other = build_case(bench, base, "other:1", b"other\n")
    assert bench.push(other, compression="zstd").replaced is not None, "loaded back by an engine that knows no zstd"


@pytest.mark.parametrize("account", ["none", "wrong"])
def test_without_the_right_account_nothing_is_pushed(account: str, bench: Bench, base: dict[str, str]) -> None:
    image = build_case(bench, base)
    before = bench.engine.inspect(image)
    if account == "none":
        bench.registry.log_out()
    else:
        bench.registry.log_in(password="hunter2-wrong")
    with pytest.raises(FlagbenchError) as caught:
        bench.push(image, known=Known())
    assert caught.value.code is ExitCode.ENGINE
    assert f"docker login {bench.registry.host}" in caught.value.remedy
    assert "hunter2" not in caught.value.message + caught.value.remedy
    assert bench.engine.inspect(image) == before


def test_a_registry_that_is_not_there(bench: Bench, base: dict[str, str]) -> None:
    image = build_case(bench, base)
    for place in (RegistryPlace("127.0.0.1:1/x"), RegistryPlace("registry.invalid/x")):
        with pytest.raises(FlagbenchError) as caught:
            bench.push(image, place, may_redistribute=True)
        assert caught.value.code is ExitCode.ENGINE
        assert place.url in caught.value.message


def build_large(bench: Bench, base: dict[str, str]) -> str:
    """An image with a layer that takes many packets."""
    return build_case(bench, base, content=os.urandom(3_000_000))


def test_an_upload_that_breaks_off_is_begun_again(bench: Bench, base: dict[str, str], proxy: Proxy) -> None:
    image, place = build_large(bench, base), bench.place(host=proxy.host)
    breaks = iter([None])
    proxy.fault = lambda content, before: next(breaks, content) if before > 1_000_000 else content
    pushed = bench.push(image, place, may_redistribute=True)
    assert next(breaks, "used") == "used"
    assert manifest_of(bench.place(), "1")["config"]["digest"] == pushed.config_digest


def test_a_registry_that_always_fails_in_the_middle(bench: Bench, base: dict[str, str], proxy: Proxy) -> None:
    image, place = build_large(bench, base), bench.place(host=proxy.host)
    proxy.fault = lambda content, before: None if before > 1_000_000 else content
    with pytest.raises(FlagbenchError) as caught:
        bench.push(image, place, may_redistribute=True)
    assert caught.value.code is ExitCode.ENGINE
    assert bench.place().read_manifest("1") is None
    assert bench.push(image).tags == ("1",)


def test_a_layer_that_is_damaged_on_the_way_is_refused(bench: Bench, base: dict[str, str], proxy: Proxy) -> None:
    image, place = build_large(bench, base), bench.place(host=proxy.host)
    # The end of a large piece: the headers of a request may stand before it.
    proxy.fault = lambda content, before: content[:-1] + bytes([content[-1] ^ 1]) if len(content) > 9000 else content
    with pytest.raises(FlagbenchError) as caught:
        bench.push(image, place, may_redistribute=True)
    assert caught.value.code is ExitCode.DATA
    assert bench.place().read_manifest("1") is None


def test_two_pushes_at_once_make_one_image(bench: Bench, base: dict[str, str]) -> None:
    image = build_large(bench, base)
    with ThreadPoolExecutor(2) as threads:
        both = [*threads.map(lambda _: bench.push(image), range(2))]
    assert both[0].digest == both[1].digest
    assert bench.engine.inspect(image).id == both[0].config_digest
    assert len(manifest_of(bench.place(), referrers_tag(both[0].digest))["manifests"]) == 1


@pytest.fixture
def command(bench: Bench, base: dict[str, str], tmp_path: Path) -> Any:
    """`flagbench push distilbert:STACK --to HOST OPTIONS...` as a process, with a stack of this test's own."""
    manifests, stack = own_stack(bench, tmp_path, build_large(bench, base))

    def start(host: str, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "flagbench",
                "push",
                f"distilbert:{stack}",
                "--to",
                f"{host}/{bench.name}",
                *options,
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "builder"), "FLAGBENCH_MANIFESTS": str(manifests)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield start
    bench.remove(f"flagbench/distilbert:{stack}-{VERSION}", f"flagbench/distilbert:{stack}")


def test_a_killed_push_is_completed_by_the_next(command: Any, bench: Bench, proxy: Proxy, tmp_path: Path) -> None:
    reached, release = threading.Event(), threading.Event()

    def hold(content: bytes, before: int) -> bytes:
        if before > 1_000_000:
            reached.set()
            release.wait(60)
        return content

    proxy.fault = hold
    process = command(proxy.host, "--i-may-redistribute")
    wait_until(lambda: reached.is_set() or process.poll() is not None, 60)
    assert reached.is_set(), process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    release.set()
    workspaces = tmp_path / "cache" / "flagbench" / "pushing"
    assert len([*workspaces.iterdir()]) == 1

    process = command(bench.registry.host, "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    answer = json.loads(out)
    place = RegistryPlace(f"{bench.registry.host}/{bench.name}/flagbench/distilbert")
    assert answer["place"] == place.url
    assert answer["tags"] == [f"{answer['image'].partition(':')[2]}-{VERSION}", answer["image"].partition(":")[2]]
    assert answer["digest"] == digest_of(place.read_manifest(answer["tags"][0])[0])  # type: ignore[index]
    assert [*workspaces.iterdir()] == [], "what the killed one left is removed"


def test_the_command_s_lines_and_its_refusals(command: Any, bench: Bench) -> None:
    process = command(bench.registry.host)
    out, err = process.communicate()
    assert process.returncode == 0, err
    *tags, last = out.splitlines()
    repository = f"{bench.registry.host}/{bench.name}/flagbench/distilbert"
    assert len(tags) == 2
    assert all(tag.startswith(f"{repository}:mini-") for tag in tags)
    assert last.startswith(f"{repository}@sha256:")
    assert "loaded back" in err
    assert "\r" not in err, "no bar where stderr is no terminal"
    for wrong in (["--compression", "xz"], ["--public"]):
        process = command(bench.registry.host, *wrong)
        assert process.communicate()[1].startswith("error: ")
        assert process.returncode == 2
    process = command("https://registry.example")
    process.communicate()
    assert process.returncode == 2
