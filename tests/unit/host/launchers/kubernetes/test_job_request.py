"""What a job may ask for, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.request import JobRequest

ALONE: dict[str, list[Any]] = {
    "nodes": [0, 100_001],
    "port": [70000, 80],
    "deadline": [0, 59, 366 * 86400],
    "ttl": [-1, 59],
    "run_id": ["a b"],
    "name": ["nine_lives", "a\nb"],
    "namespace": ["Team"],
    "queue": ["a_b"],
    "image": ["x", "x:latest", "x:1\nfoo: bar", "s3://lab/flagbench/distilbert:cpu"],
    "registry": ["https://r.io"],
    "pull_secret": [("A",)],
    "env_from_secret": [("a/b",)],
    "data_pvc": ["Data", "data:/etc"],
    "out_pvc": ["data:a/../.."],
    "weights_pvc": ["data:"],
    "resume_pvc": ["results"],
    "rdma_resource": [("rdma",), ("rdma=1",), ("rdma/a=0",), ("rdma/a=1", "rdma/a=2")],
    "cpu": ["eight"],
    "memory": ["0"],
    "shm": ["5Gi"],
    "group": [(-1,)],
    "node_label": [("a b=c",), ("a=b,c d",)],
    "env": [("A",), ("A-B=1",), ("A=1", "A=2"), ("A=x\ny",), ("A=\ud800",)],
    "label": [("a=b c",), ("app.kubernetes.io/name=x",), ("job-name=x",), ("kueue.x-k8s.io/queue-name=x",)],
    "annotation": [("flagbench.dev/run-id=x",), ("a=" + "x" * 140_000,)],
    "precision": ["tf32"],
    "data": ["/etc", "s3:///prefix", "https://host/x"],
    "weights": ["/etc", "synthetic", "s3://b"],
    "steps": [0],
    "max_minutes": [0.0, 1e308],
    "timeout": [1e9],
    "set_": [("batch_size=1\n",), ("dropout=inf",)],
}
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    *(("distilbert:cpu", {option: value}) for option, values in ALONE.items() for value in values),
    *(("distilbert:cpu", {"env": (f"{name}=1",)}) for name in ("FLAGBENCH_MASTER", "JOB_COMPLETION_INDEX")),
    ("distilbert:cpu", {"deadline": 600, "max_minutes": 10}),
    ("distilbert:cpu", {"name": "n" * 62, "nodes": 11}),
    ("distilbert:cpu", {"image": "x:1", "registry": "r.io"}),
    ("distilbert:cpu", {"data_pvc": "d", "data": "synthetic"}),
    ("glm:cpu", {"weights_pvc": "w", "weights": "s3://bucket/glm"}),
    ("distilbert:cpu", {"shm": "5Gi", "memory": "4Gi"}),
    ("llama2-7b-lora:cpu", {"resume_pvc": "results:/a"}),
    ("llama2-7b-lora:a100", {"resume_pvc": "results", "set_": ("engine=deepspeed",)}),
    ("llama2-7b-lora:a100", {"nodes": 2, "set_": ("engine=deepspeed",)}),
    ("distilbert:a100", {"rdma_resource": ("nvidia.com/gpu=1",)}),
    ("distilbert:c500", {"env": ("CUDA_VISIBLE_DEVICES=0",)}),
]


@pytest.mark.parametrize(("image", "options"), TOGETHER, ids=lambda value: str(value)[:60])
def test_refused_by_the_name_of_the_option(
    request_of: Callable[..., JobRequest], image: str, options: dict[str, Any]
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of(image, **options)
    assert any("--" + name.rstrip("_").replace("_", "-") in caught.value.message for name in options)
    assert caught.value.remedy
    assert caught.value.code == ExitCode.USAGE


KEY = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("env", (entry,))
            for entry in ("HF_TOKEN=x", "DB_PASS=hunter2", f"A={KEY}", "P=http://me:hunter2@proxy:1")
        ),
        *(("annotation", (entry,)) for entry in (f"x/y={KEY}", "x/db-password=hunter2")),
        ("label", (f"x={KEY}",)),
        ("node_label", (f"x={KEY}",)),
        ("run_id", KEY),
    ],
)
def test_a_secret_is_refused_wherever_it_would_be_written_and_not_repeated(
    request_of: Callable[..., JobRequest], option: str, value: Any
) -> None:
    with pytest.raises(FlagbenchError, match="looks like a secret") as caught:
        request_of(**{option: value})
    assert "--" + option.replace("_", "-") in caught.value.message
    assert not any(secret in caught.value.message for secret in ("aB3", "hunter2", "=x"))
    assert "--env-from-secret" in caught.value.remedy


def test_data_in_a_bucket_are_read_by_the_pods(request_of: Callable[..., JobRequest]) -> None:
    from_bucket = {"data": "s3://bucket/glm", "weights": "s3://bucket/other?profile=ceph"}
    made = request_of("glm:cpu", **from_bucket)
    assert {f"--{name}={url}" for name, url in from_bucket.items()} <= set(made.command())
    told = [warning for warning in made.warnings() if "--env-from-secret" in warning]
    assert len(told) == 1
    assert not set(told) & set(request_of("glm:cpu", **from_bucket, env_from_secret=("keys",)).warnings())


@pytest.mark.parametrize("option", ["data", "weights"])
def test_credentials_in_an_address_are_refused_and_not_repeated(
    request_of: Callable[..., JobRequest], option: str
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of("glm:cpu", **{option: "s3://AKIA:hunter2@bucket/glm"})
    assert f"--{option}" in caught.value.message
    assert "hunter2" not in caught.value.message + caught.value.remedy


def test_what_is_not_a_secret_passes(request_of: Callable[..., JobRequest]) -> None:
    plain = {"HTTP_PROXY": "http://proxy:3128", "MAX_TOKENS": "512", "A": "hf_transfer"}
    assert request_of(env=tuple(f"{name}={value}" for name, value in plain.items())).environment == plain


def test_the_name_is_made_of_case_stack_and_run_and_always_fits(request_of: Callable[..., JobRequest]) -> None:
    first = request_of("distilbert:a100", run_id="run-1", nodes=1000)
    assert first.job_name.startswith("flagbench-distilbert-a100-cuda11-6-")
    assert first.job_name != request_of("distilbert:a100", run_id="run-2").job_name
    assert len(f"{first.job_name}-999") <= 63


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, ["docker.io"]),
        ({"registry": "bench"}, ["docker.io"]),
        ({"image": "team/x:1"}, ["docker.io"]),
        ({"registry": "r.io/bench"}, []),
        ({"registry": "localhost"}, []),
        ({"image": "node:5000/x:1"}, []),
        ({"nodes": 2, "registry": "r.io"}, ["--out-pvc CLAIM keeps it"]),
        ({"nodes": 2, "registry": "r.io", "out_pvc": "results"}, []),
        ({"nodes": 2}, ["docker.io", "--out-pvc"]),
    ],
)
def test_what_may_go_wrong_on_a_cluster_is_said(
    request_of: Callable[..., JobRequest], options: dict[str, Any], warned: list[str]
) -> None:
    assert all(part in line for part, line in zip(warned, request_of(**options).warnings(), strict=True))


def test_a_name_that_looks_like_a_key_makes_a_job(job_of: Callable[..., Any]) -> None:
    assert job_of(name="sk-learn-nightly-benchmark")
