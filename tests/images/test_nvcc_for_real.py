"""A CUDA kernel compiled for an A100 by CUDA 11.8's nvcc, opt-in: FLAGBENCH_TEST_NVCC=1.

The other tests run the setup of packages that are compiled, and no compiler of theirs. Here Debian's own packages of
CUDA 11.8 (1.6 GB, non-free) compile one kernel of the kind that flash-attn has: half precision on tensor cores.
"""

import os

import pytest

from flagbench.manifests.load import load_catalog
from standins.bases import DEBIAN

pytest_plugins = ["containers"]
if not os.environ.get("FLAGBENCH_TEST_NVCC"):
    pytest.skip("opt-in: FLAGBENCH_TEST_NVCC downloads 1.6 GB", allow_module_level=True)
pytestmark = [pytest.mark.docker, pytest.mark.slow]

KERNEL = """
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// Products of 16 x 16 matrices, summed in fp32.
__global__ void product(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(left, a, 16);
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(sum, left, right, sum);
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}
"""
COMPILE = """set -e
list=/etc/apt/sources.list.d/non-free.list
echo 'deb http://deb.debian.org/debian bookworm contrib non-free non-free-firmware' >$list
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends nvidia-cuda-toolkit g++-11
nvcc -ccbin g++-11 -std=c++17 -arch=sm_80 -cubin -o /tmp/kernel.cubin /source/kernel.cu
nvcc --version
cuobjdump -sass /tmp/kernel.cubin
"""


def test_a_kernel_for_tensor_cores_is_compiled_for_an_a100(docker_client, tmp_path):
    (tmp_path / "kernel.cu").write_text(KERNEL)
    volumes = {str(tmp_path): {"bind": "/source", "mode": "ro"}}
    told = docker_client.containers.run(DEBIAN, ["sh", "-c", COMPILE], volumes=volumes, remove=True).decode()
    assert load_catalog().stacks["a100-cuda11.8"].expects["cuda"] in told
    assert "HMMA.16816.F32" in told, "the matrix instruction of an A100"
