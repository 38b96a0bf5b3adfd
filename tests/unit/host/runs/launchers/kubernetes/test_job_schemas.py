"""Jobs of every kind are valid by Kubernetes' own schemas, strictly: a field that they do not know is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Documents

kubernetes_validate = pytest.importorskip("kubernetes_validate")

VERSIONS = ("1.35", "1.36", "1.37")
DIGEST = "sha256:" + "a" * 64
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "cpu": ("distilbert:cpu", {}),
    "two nodes": ("distilbert:cpu", {"nodes": 2, "gpus": 2, "namespace": "bench", "port": 30000}),
    "RDMA": ("distilbert:a100", {"nodes": 2, "gpus": 8, "rdma_resource": ("rdma/a=1", "rdma/b=2")}),
    "c500": ("distilbert:c500", {"nodes": 2, "gpus": 8}),
    "c500 with MACA 3": ("distilbert:c500-maca3", {"gpus": 8}),
    "hopper": ("distilbert:h200", {"gpus": 8, "image": f"r.io/flagbench/distilbert@{DIGEST}"}),
    "chosen nodes": ("distilbert:h200", {"nodes": 2, "node_label": ("zone=a,b", "kubernetes.io/hostname=x,y")}),
    "queue": ("distilbert:cpu", {"nodes": 2, "queue": "fast", "pull_secret": ("regcred", "other")}),
    "volumes": ("distilbert:cpu", {"data_pvc": "sets:sst2", "weights_pvc": "models", "out_pvc": "results:a/b"}),
    "resume": ("llama2-7b-lora:a100", {"out_pvc": "results", "resume_pvc": "results:first"}),
    "store": ("distilbert:cpu", {"store": "s3://bench/lab", "store_secret": "bucket", "env": ("A=$(B) $$",)}),
    "ticket": ("distilbert:cpu", {"nodes": 2, "ticket_secret": "ticket-of-run-1"}),
    "options": ("distilbert:cpu", {"preset": "tiny", "full": True, "max_minutes": 3.5, "set_": ("dropout=0",)}),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", JOBS)
def test_jobs_are_valid(name: str, version: str, job_of: Callable[..., Documents]) -> None:
    image, options = JOBS[name]
    for document in job_of(image, **options):
        kubernetes_validate.validate(document, version, strict=True)
