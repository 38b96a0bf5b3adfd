"""Data that `aws s3 sync` copies from a bucket: by the init container of docs/kubernetes.md, and by hand.

The two containers of the job run on this machine and share a folder, as those of a pod share an emptyDir.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flagbench.images.docker import BuildRequest
from flagbench.images.render.directory import context_tar, make_build_directory
from flagbench_cases.prepare import prepared_folder
from flagbench_core.exit_codes import ExitCode
from job_pods import job_documents, kustomization, pod_arguments, pod_environment, request_of, with_init_container
from running import ENTRYPOINTS
from unit.host.conftest import Ended

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.s3, pytest.mark.docker, pytest.mark.xdist_group("aws")]

TINY = Path(ENTRYPOINTS) / "flagbench_cases" / "cases" / "distilbert" / "tiny"
DOCKERFILE = """FROM debian:bookworm-slim
RUN apt-get update -q && apt-get install -y -q --no-install-recommends awscli
"""


@pytest.fixture(scope="module")
def aws_image(docker_client: Any, docker_engine: Any, debian: str) -> Iterator[str]:
    """An image with an `aws` command, in place of amazon/aws-cli, which is on Docker Hub."""
    name = f"flagbench-test/aws-cli:{uuid.uuid4().hex[:12]}"
    docker_engine.build(BuildRequest(context_tar(make_build_directory("aws", DOCKERFILE, {}), {}), tags=(name,)))
    yield name
    docker_client.api.remove_image(name)


@pytest.fixture
def aws(server: Any, aws_image: str, start: Callable[..., Any]) -> Callable[..., None]:
    """`aws(WORD, ...)`: runs the words in a container that has the keys of the bucket, as from a Secret."""
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}

    def run(*words: str, **options: Any) -> None:
        container = start(*words, image=aws_image, environment=keys, network_mode="host", **options)
        assert container.wait() == 0, container.stderr

    return run


def options_of(pod: dict[str, Any], container: dict[str, Any], data: Path) -> dict[str, Any]:
    """Docker's options for a container of a pod whose volume `data` is that folder."""
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "data"]
    mode = "ro" if mount.get("readOnly") else "rw"
    user = pod["securityContext"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    return {
        "user": f"{user['runAsUser']}:{user['runAsGroup']}",
        "cap_drop": container["securityContext"]["capabilities"]["drop"],
        "security_opt": ["no-new-privileges"],
        "volumes": {str(data): {"bind": mount["mountPath"], "mode": mode}},
    }


def test_a_job_reads_what_its_init_container_copied(
    server: Any,
    bucket: str,
    aws: Callable[..., None],
    image_of: Callable[[str], str],
    start: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The reference preset finds /data by itself; the tiny one, which a processor can run, is told to use it."""
    for path in TINY.iterdir():
        server.upload_file(str(path), bucket, f"glm/{path.name}")
    text = kustomization("Data in a bucket").replace("BUCKET", bucket)
    text = text.replace("https://s3.example.com", os.environ["FLAGBENCH_TEST_S3"])
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)  # as a kubelet makes an emptyDir

    def start_main(*words: str, **options: Any) -> Any:
        documents = job_documents(request_of("distilbert:cpu", image=image_of("distilbert"), **options))
        pod = with_init_container(documents, text)[1]["spec"]["template"]["spec"]
        (main,) = pod["containers"]
        environment = pod_environment(documents, 0)
        return start(
            *pod_arguments(documents, 0),
            *words,
            image=main["image"],
            environment=environment,
            **options_of(pod, main, data),
        )

    pod = with_init_container(job_documents(request_of("distilbert:cpu")), text)[1]["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    assert init["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    aws(*init["command"], **options_of(pod, init, data))
    assert {path.name for path in data.iterdir()} == {path.name for path in TINY.iterdir()}

    described = start_main("--describe")
    assert described.wait() == 0, described.stderr
    (line,) = described.lines
    assert json.loads(line)["config"]["data"]["source"] == "files"
    trained = start_main("--data=/data", preset="tiny", steps=2)
    assert trained.wait() == 0, trained.stderr
    assert trained.record["conditions"]["data"] == "files"


def test_a_copy_of_a_prepared_folder_can_be_checked(
    bucket: str, aws: Callable[..., None], typed: Callable[..., Ended], tmp_path: Path
) -> None:
    """`aws s3 sync` compares sizes and times alone."""
    with prepared_folder.writing(str(tmp_path / "source"), "glm", "data") as writer:
        Path(writer.path("one.bin")).write_bytes(b"some bytes")
        writer.format("test/v1")
    copy = tmp_path / "copy"
    volumes = {str(tmp_path): {"bind": "/work", "mode": "rw"}}
    sync = ["aws", "s3", "sync", f"--endpoint-url={os.environ['FLAGBENCH_TEST_S3']}"]
    aws(*sync, "/work/source", f"s3://{bucket}/glm", volumes=volumes)
    aws(*sync, f"s3://{bucket}/glm", "/work/copy", volumes=volumes)
    assert typed("prepare", "glm", "-o", str(copy), "--check").code == 0
    damaged = copy / "data" / "one.bin"
    times = damaged.stat()
    damaged.write_bytes(b"SOME BYTES")
    os.utime(damaged, (times.st_atime, times.st_mtime))
    aws(*sync, f"s3://{bucket}/glm", "/work/copy", volumes=volumes)
    assert typed("prepare", "glm", "-o", str(copy), "--check").code == ExitCode.DATA
