"""The image of every claim against the key by which FlagPerf chose it and that key's Dockerfile."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest

from catalogs import CATALOG
from flagbench.manifests.rows import Claim


class Image(NamedTuple):
    """Which image the runs of some claims had."""

    claims: str
    """A pattern of their ids."""
    commit: str
    """Of FlagPerf."""
    key: str
    """In training/run_benchmarks/config/test_conf.py; of `roofs` in base/configs/host.yaml; `-`: there is none."""
    dockerfile: str
    """The folder of the Dockerfile; `-`: no image is named, or one without a framework."""
    base: str
    """The image that the Dockerfile is based on."""
    owner: str = ""
    """The vendor, if it did not publish that image."""

    def published(self, commit: str) -> str:
        """What a claim says whose row is of that commit."""
        if self.dockerfile == "-":
            return "not published"
        if not self.owner:
            return self.base
        if self.commit != commit:
            return f"not published ({self.owner}'s own, {self.base} in its Dockerfile at {self.commit})"
        return f"not published ({self.owner}'s own, {self.base} in its Dockerfile)"


# Claims | commit | key | folder of the Dockerfile | base | its owner, if the base was not published
TEXT = """
aquila-33b/a100-* | db1edaa2 | - | inference/docker_images/nvidia/pytorch_1.12 | nvcr.io/nvidia/pytorch:22.05-py3

distilbert/a100-* | 1b5a0303 | distilbert:pytorch_1.12:A100 | training/nvidia/docker_image/pytorch_1.12 | nvcr.io/nvidia/pytorch:22.04-py3
distilbert/c500-* | 1b5a0303 | distilbert:pytorch_2.0:A100 | training/metax/docker_image/pytorch_2.0 | maca-2.18.0.8-ubuntu18.04-amd64:FlagPerf-base-v1 | MetaX
distilbert/r300-* | 1b5a0303 | distilbert:pytorch:R300 | training/kunlunxin/docker_image/pytorch | dynamicheart/pytorch1.12.1-cpu-ubuntu20.04:v0.01

glm/a100-*-fp32* | 1b5a0303 | glm:pytorch_1.8:A100 | training/nvidia/docker_image/pytorch_1.8 | nvcr.io/nvidia/pytorch:21.02-py3
glm/a100-*-2023-08 | f33ae772 | glm:pytorch_1.8:A100 | training/nvidia/docker_image/pytorch_1.8 | nvcr.io/nvidia/pytorch:21.02-py3
glm/c500-* | 1b5a0303 | glm:pytorch_2.0:C500 | training/metax/docker_image/pytorch_2.0 | maca-2.18.0.8-ubuntu18.04-amd64:FlagPerf-base-v1 | MetaX
glm/bi-v100-* | 1b5a0303 | - | - | -
glm/r300-*-fp32-* | 1b5a0303 | glm:pytorch:R300 | training/kunlunxin/docker_image/pytorch | dynamicheart/pytorch1.12.1-cpu-ubuntu20.04:v0.01
glm/r300-*-2023-04 | e0369635 | - | training/kunlunxin/docker_image/pytorch | dynamicheart/pytorch1.12.1-cpu-ubuntu18.04:v0.04
glm/k100-* | 1b5a0303 | glm:pytorch_1.13:K100 | training/dcu/docker_image/pytorch_1.13 | image.sourcefind.cn:5000/dcu/admin/base/pytorch:1.13.1-centos7.6-dtk23.10-py38

llama2-7b-lora/a100-* | 1b5a0303 | llama2_7b_finetune:pytorch_2.0.1:A100 | training/nvidia/docker_image/pytorch_2.0.1 | nvcr.io/nvidia/pytorch:23.09-py3
llama2-7b-lora/c500-* | 1b5a0303 | - | - | -

llama2-70b/h800-* | 1b5a0303 | llama2_70B:megatron:H800 | training/nvidia/docker_image/megatron | nvcr.io/nvidia/pytorch:23.09-py3
llama2-70b/c500-* | b123c87f | llama2_70B:megatron:C500 | training/metax/docker_image/megatron | flagperf_megatron:2.18.0.8.1 | MetaX
llama2-70b/r300-* | 1b5a0303 | llama2_70B:megatron:R300 | training/kunlunxin/docker_image/megatron | iregistry.baidu-int.com/xmlir/xmlir_ubuntu_2004_x86_64:v0.27

llama3-8b/a100-* | 1b5a0303 | llama3_8B:megatron_core060:A100 | training/nvidia/docker_image/megatron_core060 | nvcr.io/nvidia/pytorch:24.02-py3
llama3-8b/h100-* | 1b5a0303 | - | - | -
llama3-8b/c500-* | 1b5a0303 | llama3_8B:megatron_core060:C500 | training/metax/docker_image/megatron_core060 | metax-megatron:2.23.0.13.342-ubuntu20.04-amd64 | MetaX

roofs/a100-*-bf16 | 1b5a0303 | computation-BF16:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-*-fp16 | 1b5a0303 | computation-FP16:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-*-fp64 | 1b5a0303 | computation-FP64:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a800-*-tf32 | 1b5a0303 | computation-TF32:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-a800-*-fp32 | 1b5a0303 | computation-FP32:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-*-memory | 1b5a0303 | main_memory-bandwidth:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-*-h2d | 1b5a0303 | interconnect-h2d:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-1x8-all-reduce | 1b5a0303 | interconnect-MPI_intraserver:A100 | base/vendors/nvidia/pytorch_2.3 | nvcr.io/nvidia/pytorch:24.02-py3
roofs/a100-2x8-all-reduce | 1b5a0303 | interconnect-MPI_interserver:A100 | base/vendors/nvidia/pytorch_ssh | nvcr.io/nvidia/pytorch:23.12-py3
roofs/bi150-* | 1b5a0303 | ...:BI150 | base/vendors/iluvatar/pytorch_2.1 | flagperf_iluvatar:v1.0 | Iluvatar
roofs/c550-* | 1b5a0303 | main_memory-bandwidth:C550 | base/vendors/metax/pytorch_2.1 | mxc500-torch2.1-py310:mc2.32.0.3-ubuntu22.04-amd64 | MetaX
roofs/ascend-* | 1b5a0303 | - | - | -
"""  # noqa: E501

IMAGES = [Image(*(cell.strip() for cell in line.split("|"))) for line in TEXT.splitlines() if line]
CLAIMS = [claim for claim in CATALOG.claims.values() if claim.source.project == "FlagPerf"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_names_the_image_of_its_key(claim: Claim) -> None:
    images = [image for image in IMAGES if fnmatchcase(claim.id, image.claims)]
    assert [image.published(claim.source.commit) for image in images] == [claim.published_image]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.claims)
def test_every_image_is_of_a_claim(image: Image) -> None:
    assert any(fnmatchcase(claim.id, image.claims) for claim in CLAIMS)


@pytest.mark.parametrize(
    "image", [image for image in IMAGES if image.key.count(":") == 2], ids=lambda image: image.claims
)
def test_a_key_of_training_names_the_folder_of_its_dockerfile(image: Image) -> None:
    assert image.dockerfile.endswith("/docker_image/" + image.key.split(":")[1])


def test_pointwise_operators_are_those_of_the_image() -> None:
    """Megatron-LM core_v0.6.0, megatron/core/jit.py:11: torch.compile from torch 2.2 on; NGC 24.02 has torch 2.3."""
    rows = {claim.id: claim.conditions["pointwise"] for claim in CLAIMS if claim.case == "llama3-8b"}
    compiled = {name for name, value in rows.items() if value == "torch.compile"}
    assert compiled == {claim.id for claim in CLAIMS if claim.id.startswith("llama3-8b/a100-")}
    assert len(compiled) == 7
