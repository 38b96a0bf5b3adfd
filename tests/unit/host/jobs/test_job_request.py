"""What a job may ask for, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.jobs import JobRequest

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"nodes": 0}, "--nodes 0 is out of range"),
    ({"nodes": 100_001}, "--nodes 100001 is out of range"),
    ({"gpus": 0}, "--gpus 0 is out of range"),
    ({"port": 70000}, "--port 70000 is out of range"),
    ({"port": 80}, "--port 80 is kept for uid 0"),
    ({"deadline": 0}, "--deadline 0 is out of range"),
    ({"deadline": 59}, "--deadline 59 is out of range"),
    ({"deadline": 366 * 86400}, "--deadline 31622400 is out of range"),
    ({"ttl": -1}, "--ttl -1 is out of range"),
    ({"ttl": 59}, "--ttl 59 is out of range"),
    ({"deadline": 600, "arguments": {"max_minutes": 10}}, "before --max-minutes 10"),
    ({"run_id": "a b"}, "--run-id 'a b' may hold"),
    ({"name": "nine_lives"}, "--name 'nine_lives' may hold"),
    ({"name": "a\nb"}, r"--name 'a\nb' may hold"),
    ({"name": "n" * 62, "nodes": 11}, "is too long: the last pod would be called"),
    ({"namespace": "Team"}, "--namespace 'Team' may hold"),
    ({"queue": "a_b"}, "--queue 'a_b' may hold"),
    ({"image": "x"}, "has neither a tag nor a digest"),
    ({"image": "x:latest"}, "is tagged latest"),
    ({"image": "x:1\nfoo: bar"}, "is not [HOST/]NAME:TAG"),
    ({"image": "x:1", "registry": "r.io"}, "--image and --registry contradict"),
    ({"registry": "https://r.io"}, "--registry 'https://r.io' is not HOST"),
    ({"pull_policy": "always"}, "--pull-policy 'always' is not valid"),
    ({"pull_secret": ("A",)}, "--pull-secret 'A' may hold"),
    ({"env_from_secret": ("a/b",)}, "--env-from-secret 'a/b' may hold"),
    ({"data_pvc": "Data"}, "--data-pvc 'Data' may hold"),
    ({"data_pvc": "data:/etc"}, "--data-pvc '/etc' is not a relative path"),
    ({"out_pvc": "data:a/../.."}, "--out-pvc 'a/../..' leads upwards"),
    ({"weights_pvc": "data:"}, "--weights-pvc '' is not a relative path"),
    ({"data_pvc": "d", "arguments": {"data": "synthetic"}}, "--data and --data-pvc contradict"),
    ({"resume_pvc": "results"}, "distilbert writes no checkpoints to resume from"),
    ({"image_name": "llama2-7b-lora:cpu", "resume_pvc": "results:/a"}, "--resume-pvc '/a' is not a relative path"),
    (
        {
            "image_name": "llama2-7b-lora:a100",
            "resume_pvc": "results",
            "arguments": {"set_": ("engine=deepspeed",)},
        },
        "the deepspeed engine cannot resume from a checkpoint",
    ),
    ({"rdma_resource": ("rdma",)}, "a value of --rdma-resource holds no '='"),
    ({"rdma_resource": ("rdma=1",)}, "--rdma-resource 'rdma' is not written DOMAIN/NAME"),
    ({"rdma_resource": ("rdma/a=0",)}, "'0' is not a number of devices"),
    ({"rdma_resource": ("rdma/a=1", "rdma/a=2")}, "'rdma/a' is given twice"),
    ({"image_name": "distilbert:a100", "rdma_resource": ("nvidia.com/gpu=1",)}, "the accelerator's own resource"),
    ({"cpu": "eight"}, "--cpu 'eight' is no quantity"),
    ({"memory": "0"}, "--memory '0' is no quantity above 0"),
    ({"shm": "5Gi", "memory": "4Gi"}, "/dev/shm of 5Gi does not leave anything"),
    ({"shm": "5Gi"}, "/dev/shm of 5Gi does not leave anything of 5Gi"),
    ({"group": (-1,)}, "--group -1 is no group"),
    ({"node_label": ("a b=c",)}, "--node-label 'a b' may hold"),
    ({"node_label": ("a=b,c d",)}, "--node-label a 'c d' may hold"),
    ({"env": ("A",)}, "a value of --env holds no '='"),
    ({"env": ("A-B=1",)}, "--env 'A-B' may hold"),
    ({"env": ("A=1", "A=2")}, "--env 'A' is given twice"),
    ({"env": ("A=x\ny",)}, "holds the control character '\\n'"),
    ({"env": ("A=\ud800",)}, "holds the control character"),
    ({"env": ("FLAGBENCH_MASTER=x:1",)}, "the job, the image or the cluster sets it"),
    ({"env": ("JOB_COMPLETION_INDEX=1",)}, "the job, the image or the cluster sets it"),
    ({"image_name": "distilbert:c500", "env": ("CUDA_VISIBLE_DEVICES=0",)}, "which devices are visible"),
    ({"label": ("a=b c",)}, "--label a 'b c' may hold"),
    ({"label": ("app.kubernetes.io/name=x",)}, "is set by flagbench or by Kubernetes"),
    ({"label": ("job-name=x",)}, "is set by flagbench or by Kubernetes"),
    ({"label": ("kueue.x-k8s.io/queue-name=x",)}, "is what --queue sets"),
    ({"annotation": ("flagbench.dev/run-id=x",)}, "is set by flagbench or by Kubernetes"),
    ({"annotation": ("a=" + "x" * 140_000,)}, "longer than 128 KiB"),
    ({"arguments": {"preset": "huge"}}, "--preset 'huge' is not a choice"),
    ({"arguments": {"division": "tuned"}}, "--division 'tuned' is not a choice"),
    ({"arguments": {"precision": "fp8"}}, "--precision 'fp8' is not a choice"),
    ({"arguments": {"precision": "tf32"}}, "a processor has no TF32"),
    ({"arguments": {"data": "/etc"}}, "--data '/etc' is not a choice"),
    ({"arguments": {"steps": 0}}, "--steps 0 is out of range"),
    ({"arguments": {"seed": 2**31}}, "--seed 2147483648 is out of range"),
    ({"arguments": {"timeout": float("nan")}}, "--timeout nan is not a span"),
    ({"arguments": {"max_minutes": 0.0}}, "--max-minutes 0.0 is not a span"),
    ({"arguments": {"max_minutes": 1e308}}, "--max-minutes 1e+308 is not a span"),
    ({"arguments": {"timeout": 1e9}}, "--timeout 1000000000.0 is not a span"),
    ({"arguments": {"steps": 5, "full": True}}, "--steps and --full contradict"),
    ({"arguments": {"set_": ("batch_size",)}}, "has no value"),
    ({"arguments": {"set_": ("batchsize=1",)}}, "'batchsize' is not a hyper-parameter"),
    ({"arguments": {"set_": ("batch_size=0",)}}, "must be at least 1"),
    ({"arguments": {"set_": ("batch_size=1\n",)}}, "holds the control character"),
    ({"arguments": {"set_": ("dropout=inf",)}}, "'inf' is no number"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refused(request_of: Callable[..., JobRequest], options: dict[str, Any], message: str) -> None:
    options = dict(options)
    image = options.pop("image_name", "distilbert:cpu")
    with pytest.raises(FlagbenchError) as caught:
        request_of(image, **options)
    assert message in caught.value.message
    assert caught.value.remedy
    assert caught.value.code == ExitCode.USAGE


SECRETS = [
    "hf_" + "aB3" * 10,
    "ghp_" + "aB3" * 12,
    "gho_" + "aB3" * 12,
    "github_pat_" + "aB3" * 12,
    "glpat-" + "aB3" * 7,
    "AKIA" + "Q7" * 8,
    "sk-proj-" + "aB3" * 8,
    "eyJhbGciOiJIUzI1NiJ9.e30.x",
    "-----BEGIN PRIVATE KEY-----",
    "https://store.example.com/set?version=1&access-key=x",
    "https://store.example.com/set?X-Amz-Signature=x",
    "https://store.example.com/set?sv=1&sig=x",
    "--user=me --password=x",
    "Authorization: Bearer " + "aB3" * 8,
    "x," + "hf_" + "aB3" * 10,
]


@pytest.mark.parametrize(
    "entry",
    [
        "HF_TOKEN=x",
        "MY_SECRET=x",
        "DB_PASSWORD=x",
        "AWS_SECRET_ACCESS_KEY=x",
        "AWS_ACCESS_KEY_ID=x",
        "WANDB_API_KEY=x",
        "KEY=x",
        "API_TOKENS=x",
        "DB_PASSWORD=1234",
        "credentials=x",
        "HTTP_PROXY=http://user:pass@proxy:3128",
        *(f"A={value}" for value in SECRETS),
    ],
)
def test_a_secret_is_refused_and_not_repeated(request_of: Callable[..., JobRequest], entry: str) -> None:
    with pytest.raises(FlagbenchError, match="looks like a secret") as caught:
        request_of(env=(entry,))
    assert entry.partition("=")[2] not in caught.value.message.split()
    assert "--env-from-secret" in caught.value.remedy


@pytest.mark.parametrize(
    "entry",
    [
        "NCCL_IB_HCA=mlx5",
        "KEYBOARD=de",
        "AUTHOR=x",
        "TOKENIZERS_PARALLELISM=false",
        "MAX_TOKENS=512",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
        "HTTP_PROXY=http://proxy:3128",
        "A=hf_transfer",
        "A=task-force-of-many-people",
        "A=https://store.example.com/set?version=1&keyboard=de",
        "A=https://store.example.com/complete?max_tokens=512",
        "A=keyJournal-of-the-benchmark",
        "A=a basic introduction",
    ],
)
def test_what_is_no_secret_passes(request_of: Callable[..., JobRequest], entry: str) -> None:
    name, _, value = entry.partition("=")
    assert request_of(env=(entry,)).environment == {name: value}


def test_the_name_is_made_of_case_stack_and_run_and_always_fits(request_of: Callable[..., JobRequest]) -> None:
    first = request_of("distilbert:a100", run_id="run-1", nodes=1000)
    assert first.job_name.startswith("flagbench-distilbert-a100-cuda11-6-")
    assert first.job_name != request_of("distilbert:a100", run_id="run-2").job_name
    assert len(f"{first.job_name}-999") <= 63


def test_the_deadline_leaves_time_to_schedule_and_pull(request_of: Callable[..., JobRequest]) -> None:
    assert request_of().deadline_seconds == 4 * 3600
    assert request_of(arguments={"max_minutes": 10.5}).deadline_seconds == 630 + 1800
    assert request_of(deadline=700, arguments={"max_minutes": 10}).deadline_seconds == 700


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
