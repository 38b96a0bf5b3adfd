"""`flagbench job` prints a job to apply."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from job_pods import PAGES, find, job_documents, kustomization, request_of, with_init_container

JOB = "job distilbert:cpu --for kubernetes --nodes 2 --gpus 2"

Flagbench = Callable[..., Any]
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def test_the_first_lines_name_the_command_that_makes_it(flagbench: Flagbench) -> None:
    code, text, _ = flagbench(f"{JOB} --set dropout=0.5", "--env", "NOTE=it's $HOME", "--data-pvc", "d:a b")
    assert code == 0
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["Service", "Job"]
    again = shlex.split(text.splitlines()[1].removeprefix("#"))
    assert again[0] == "flagbench"
    assert flagbench("", *again[1:])[:2] == (0, text)


def test_json_is_one_list_and_warnings_are_on_stderr(flagbench: Flagbench) -> None:
    ended = flagbench(f"{JOB} --json")
    assert (ended.json["kind"], ended.json["apiVersion"]) == ("List", "v1")
    assert [line.partition(":")[0] for line in ended.err.splitlines()] == ["warning", "warning"]
    again = flagbench(f"{JOB} --json --registry r.io/bench --out-pvc results")
    assert again.err == ""
    assert again.json["items"][1]["metadata"]["name"] != ended.json["items"][1]["metadata"]["name"]


def test_out_writes_a_file(tmp_path: Path, flagbench: Flagbench) -> None:
    path = tmp_path / "job.yaml"
    assert flagbench(f"{JOB} --out {path}")[:2] == (0, "")
    assert len([*yaml.safe_load_all(path.read_text())]) == 2
    assert flagbench(f"{JOB} --out {tmp_path}").code == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "CASE:STACK"),
        ("distilbert:cpux --for kubernetes", "'cpux'"),
        ("distilbert:cpu --for kubernetes --env TOKEN=x", "--env TOKEN"),
        ("distilbert:cpu --for kubernetes --data s3://bucket/sst2", "an init container"),
        ("llama2-70b:cpu --for kubernetes --preset tiny --gpus 4 --set tp=3", "tp 3"),
    ],
)
def test_usage_errors(words: str, named: str, flagbench: Flagbench) -> None:
    code, out, err = flagbench(f"job {words}")
    assert (code, out) == (2, "")
    assert named in err


@pytest.mark.parametrize("page", ["kubernetes", "several-nodes", "fleet"])
def test_every_command_of_the_page_makes_a_job(
    page: str, flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("node/gpu-1\nnode/gpu-2\n")
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    commands = re.findall(r"^flagbench (job .*?)(?: [>|] .*)?$", text, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        assert flagbench("", *shlex.split(command)).code == 0, command


def kustomize(folder: Path, documents: list[Any], title: str) -> list[Any]:
    """What kubectl makes of a Service and a Job with the kustomization of that section of the page."""
    (folder / "job.yaml").write_text(yaml.safe_dump_all(documents))
    (folder / "kustomization.yaml").write_text(kustomization(title))
    done = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True)
    return [*yaml.safe_load_all(done.stdout)]


@needs_kubectl
def test_the_page_adds_an_init_container_alone(tmp_path: Path) -> None:
    before = job_documents(request_of("glm:a100", gpus=8))
    title = "Data in a bucket"
    assert kustomize(tmp_path, before, title) == with_init_container(before, kustomization(title))


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_the_job_with_an_init_container_is_valid(version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    _, job = with_init_container(job_documents(request_of()), kustomization("Data in a bucket"))
    kubernetes_validate.validate(job, version, strict=True)


@needs_kubectl
def test_the_page_patches_the_job_alone(tmp_path: Path) -> None:
    before = job_documents(request_of("distilbert:a100", gpus=8))
    service, job = kustomize(tmp_path, before, "Change anything else")
    assert service == before[0]
    expected = {
        "job metadata name": before[1]["metadata"]["name"],
        "job spec ttlSecondsAfterFinished": 600,
        "main resources limits": {"cpu": "90", "memory": "600Gi", "nvidia.com/gpu": "8"},
        "main args": find(before, "main args"),
        "pod volumes 0 emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"},
        "pod volumes 1 name": "authority",
        "pod securityContext runAsUser": 1000,
        "pod securityContext supplementalGroups": [44],
    }
    volumes = {volume["name"]: volume for volume in find([service, job], "pod volumes")}
    job["spec"]["template"]["spec"]["volumes"] = [volumes["shm"], volumes["authority"]]
    assert {place: find([service, job], place) for place in expected} == expected
