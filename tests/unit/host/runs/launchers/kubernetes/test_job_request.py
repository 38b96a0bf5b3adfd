"""What a job may ask for, and what is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode
from job_pods import request_of

ALONE: dict[str, list[Any]] = {
    "nodes": [0, 100_001],
    "run_id": ["a b"],
    "name": ["a\nb", "Bad_Name", "a.b", "-a", "a" * 62],  # with -0, a pod's host name has 64 characters
    "image": ["x", "x:latest", "x:1\nfoo: bar", "s3://lab/flagbench/distilbert:cpu"],
    "registry": ["https://r.io"],
    "resume_pvc": ["results"],
    "rdma_resource": [("rdma",), ("rdma/a=1", "rdma/a=2")],
    "env": [("A",), ("1=x",), ("A=1", "A=2"), ("A=\ud800",), ("FLAGBENCH_MASTER=x:1",)],
    "precision": ["tf32"],
    "data": ["/etc", "s3://bucket/sst2", "https://host/x"],
    "store": ["/data/store", "file:///out", "s3://b", "s3://bench?profile=minio"],
    "store_secret": ["bucket"],
    "set_": [("batch_size=1\n",), ("dropout=inf",), ("batch_size",), ("batchsize=1",)],
}
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    *(("distilbert:cpu", {option: value}) for option, values in ALONE.items() for value in values),
    ("distilbert:cpu", {"image": "x:1", "registry": "r.io"}),
    ("distilbert:cpu", {"data_pvc": "d", "data": "synthetic"}),
    ("llama2-7b-lora:a100", {"resume_pvc": "results", "set_": ("engine=deepspeed",)}),
    ("llama2-7b-lora:a100", {"nodes": 2, "set_": ("engine=deepspeed",)}),
    ("glm:cpu", {"precision": "fp16"}),
    ("roofs:a100", {"roofs": True}),
    ("distilbert:a100", {"rdma_resource": ("nvidia.com/gpu=1",)}),
    ("distilbert:c500", {"env": ("CUDA_VISIBLE_DEVICES=0",)}),
]


@pytest.mark.parametrize(("image", "options"), TOGETHER, ids=lambda value: str(value)[:40])
def test_refused_by_the_name_of_the_option(image: str, options: dict[str, Any]) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of(image, **options)
    # Core, which knows no volumes, names an option as the image does.
    names = ["--" + name.rstrip("_").removesuffix("_pvc").replace("_", "-") for name in options]
    assert any(name in caught.value.message for name in names)
    assert caught.value.code == ExitCode.USAGE


def test_checkpoints_of_a_job_need_a_volume() -> None:
    split: dict[str, Any] = {"nodes": 4, "gpus": 8, "set_": ("checkpoint_every_steps=5",)}
    with pytest.raises(FlagbenchError) as caught:
        request_of("llama2-70b:a100", **split)
    assert caught.value.code == ExitCode.USAGE
    job = request_of("llama2-70b:a100", out_pvc="results", **split)
    assert (job.config["train"]["checkpoint_every_steps"], job.config["layout"]["tp"]) == (5, 8)


KEY = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("env", ("HF_TOKEN=hunter2",)),
        ("env", (f"A={KEY}",)),
        ("env", ("P=http://me:hunter2@proxy:1",)),
        ("env", ("AWS_SECRET_ACCESS_KEY=hunter2",)),
        ("node_label", (f"x={KEY}",)),
        ("run_id", KEY),
        ("data", "s3://AKIA:hunter2@bucket/sst2"),
        ("store", "s3://KEY:hunter2@bench"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(option: str, value: Any) -> None:
    with pytest.raises(FlagbenchError) as caught:
        request_of(**{option: value})
    told = caught.value.message + caught.value.remedy
    assert "--" + option.replace("_", "-") in caught.value.message
    assert not any(secret in told for secret in ("aB3", "hunter2"))


def test_what_is_not_a_secret_passes() -> None:
    plain = {"HTTP_PROXY": "http://proxy:3128", "MAX_TOKENS": "512", "A": "hf_transfer"}
    made = request_of(env=tuple(f"{name}={value}" for name, value in plain.items()), name="sk-learn-nightly-run")
    assert made.environment == {**plain, "FLAGBENCH_ENV": "HTTP_PROXY,MAX_TOKENS,A"}


def test_the_default_name_fits_a_host_name() -> None:
    first = request_of("distilbert:a100", run_id="run-1", nodes=1000)
    assert first.job_name.startswith("flagbench-distilbert-a100-cuda11-6-")
    assert first.job_name != request_of("distilbert:a100", run_id="run-2").job_name
    assert len(f"{first.job_name}-999") <= 63


@pytest.mark.parametrize(
    ("of", "options", "small", "large"),
    [
        ("llama3-8b:cuda13", {"gpus": 8}, "NVIDIA-L40S", "NVIDIA-A100-SXM4-80GB"),
        ("llama3.1-8b-lora:a100", {}, "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-80GB-PCIe"),
    ],
)
def test_nodes_have_the_memory_that_a_run_was_measured_to_take(
    of: str, options: dict[str, Any], small: str, large: str
) -> None:
    (products,) = request_of(of, registry="r.io", **options).node_labels.values()
    assert (small in products, large in products) == (False, True)
    (all_products,) = request_of(of, registry="r.io", preset="tiny", **options).node_labels.values()
    assert {small, large} <= {*all_products}


def test_a_stack_without_such_a_device_keeps_its_nodes_and_warns() -> None:
    request = request_of("llama3-8b:c500", gpus=8, registry="r.io")
    assert [*request.node_labels.values()] == [("MXC500",)]
    (warning,) = request.warnings()
    assert "71 GiB" in warning
    small = request_of("llama3.1-8b-lora:rtx-4090", registry="r.io")
    assert [*small.node_labels.values()] == [("NVIDIA-GeForce-RTX-4090",)]
    assert len(small.warnings()) == 1


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"registry": "bench"}, ["docker.io"]),
        ({"image": "team/x:1"}, ["docker.io"]),
        ({"registry": "r.io/bench"}, []),
        ({"image": "node:5000/x:1"}, []),
        ({"nodes": 2, "registry": "localhost"}, ["--out-pvc"]),
        ({"nodes": 2, "registry": "r.io", "out_pvc": "results"}, []),
        ({"nodes": 2, "registry": "r.io", "store": "s3://bench", "store_secret": "keys"}, []),
        ({"registry": "r.io", "store": "s3://bench"}, ["--store-secret"]),
        ({"nodes": 2}, ["docker.io", "--out-pvc"]),
    ],
)
def test_warnings(options: dict[str, Any], warned: list[str]) -> None:
    assert all(part in line for part, line in zip(warned, request_of(**options).warnings(), strict=True))
