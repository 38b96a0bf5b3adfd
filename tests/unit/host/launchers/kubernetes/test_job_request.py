"""What a job may ask for, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.request import JobRequest

REFUSED: list[dict[str, Any]] = [
    {"nodes": 0},
    {"nodes": 100_001},
    {"port": 70000},
    {"port": 80},
    {"deadline": 0},
    {"deadline": 59},
    {"deadline": 366 * 86400},
    {"ttl": -1},
    {"ttl": 59},
    {"deadline": 600, "max_minutes": 10},
    {"run_id": "a b"},
    {"name": "nine_lives"},
    {"name": "a\nb"},
    {"name": "n" * 62, "nodes": 11},
    {"namespace": "Team"},
    {"queue": "a_b"},
    {"image": "x"},
    {"image": "x:latest"},
    {"image": "x:1\nfoo: bar"},
    {"image": "x:1", "registry": "r.io"},
    {"registry": "https://r.io"},
    {"pull_secret": ("A",)},
    {"env_from_secret": ("a/b",)},
    {"data_pvc": "Data"},
    {"data_pvc": "data:/etc"},
    {"out_pvc": "data:a/../.."},
    {"weights_pvc": "data:"},
    {"data_pvc": "d", "data": "synthetic"},
    {"resume_pvc": "results"},
    {"image_name": "llama2-7b-lora:cpu", "resume_pvc": "results:/a"},
    {"image_name": "llama2-7b-lora:a100", "resume_pvc": "results", "set_": ("engine=deepspeed",)},
    {"image_name": "llama2-7b-lora:a100", "nodes": 2, "set_": ("engine=deepspeed",)},
    {"rdma_resource": ("rdma",)},
    {"rdma_resource": ("rdma=1",)},
    {"rdma_resource": ("rdma/a=0",)},
    {"rdma_resource": ("rdma/a=1", "rdma/a=2")},
    {"image_name": "distilbert:a100", "rdma_resource": ("nvidia.com/gpu=1",)},
    {"cpu": "eight"},
    {"memory": "0"},
    {"shm": "5Gi", "memory": "4Gi"},
    {"shm": "5Gi"},
    {"group": (-1,)},
    {"node_label": ("a b=c",)},
    {"node_label": ("a=b,c d",)},
    {"env": ("A",)},
    {"env": ("A-B=1",)},
    {"env": ("A=1", "A=2")},
    {"env": ("A=x\ny",)},
    {"env": ("A=\ud800",)},
    {"env": ("FLAGBENCH_MASTER=x:1",)},
    {"env": ("JOB_COMPLETION_INDEX=1",)},
    {"image_name": "distilbert:c500", "env": ("CUDA_VISIBLE_DEVICES=0",)},
    {"label": ("a=b c",)},
    {"label": ("app.kubernetes.io/name=x",)},
    {"label": ("job-name=x",)},
    {"label": ("kueue.x-k8s.io/queue-name=x",)},
    {"annotation": ("flagbench.dev/run-id=x",)},
    {"annotation": ("a=" + "x" * 140_000,)},
    {"precision": "tf32"},
    {"data": "/etc"},
    {"steps": 0},
    {"max_minutes": 0.0},
    {"max_minutes": 1e308},
    {"timeout": 1e9},
    {"set_": ("batch_size=1\n",)},
    {"set_": ("dropout=inf",)},
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_refused_by_the_name_of_the_option(request_of: Callable[..., JobRequest], options: dict[str, Any]) -> None:
    given = dict(options)
    image = given.pop("image_name", "distilbert:cpu")
    with pytest.raises(FlagbenchError) as caught:
        request_of(image, **given)
    assert any("--" + name.rstrip("_").replace("_", "-") in caught.value.message for name in given)
    assert caught.value.remedy
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize("entry", ["HF_TOKEN=x", "HTTP_PROXY=http://user:pass@proxy:3128", "A=hf_" + "aB3" * 10])
def test_a_secret_is_refused_and_not_repeated(request_of: Callable[..., JobRequest], entry: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of(env=(entry,))
    assert entry.partition("=")[2] not in caught.value.message.split()
    assert "--env-from-secret" in caught.value.remedy


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("annotation", ("x/y=hf_" + "aB3" * 10,)),
        ("annotation", ("x/db-password=hunter2",)),
        ("label", ("x=hf_" + "aB3" * 10,)),
        ("node_label", ("x=hf_" + "aB3" * 10,)),
        ("run_id", "hf_" + "aB3" * 10),
        ("env", ("DB_PASS=hunter2",)),
    ],
)
def test_a_secret_is_refused_wherever_it_would_be_written(
    request_of: Callable[..., JobRequest], option: str, value: Any
) -> None:
    with pytest.raises(FlagbenchError, match="looks like a secret") as caught:
        request_of(**{option: value})
    assert "--" + option.replace("_", "-") in caught.value.message
    assert "aB3" not in caught.value.message
    assert "hunter2" not in caught.value.message


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
    found = request_of(**options).warnings()
    assert len(found) == len(warned)
    assert all(part in line for part, line in zip(warned, found, strict=True))


def test_a_name_that_looks_like_a_key_makes_a_job(job_of: Callable[..., Any]) -> None:
    assert job_of(name="sk-learn-nightly-benchmark")
