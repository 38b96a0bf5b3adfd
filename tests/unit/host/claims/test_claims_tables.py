"""The claims against the published tables, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from catalogs import CATALOG
from flagbench.manifests.rows import Claim, PublishedValue

CLAIMS = CATALOG.claims


class Published(NamedTuple):
    """One version of a table: each row by its columns' headings, beside its claim, if it has a number."""

    file: str
    commit: str
    rows: list[tuple[Claim | None, dict[str, str]]]


# First versions of tables of NVIDIA, which are the source of single values.
FIRST = ("269c1fd5", "ebe6776e")
ALIGNED = "是否精度对齐"
# Of each README: the case, the file and the commit, and the table as printed, with the ids of the claims before it.
TEXT = """
aquila-33b inference/benchmarks/Aquila_33b/README.md db1edaa2
id | 推理工具 | precision | e2e_time | p_val_whole | *p_val_core | p_infer_whole | *p_infer_core | *MFU | loss | mem
a100-1x8-tp8 | FlagScale | fp16 | 2479.9 | / | / | 8711 | 8724 | 23.8% | 3.0075 | 12.3/40.0

distilbert training/nvidia/distilbert-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem
a100-1x8-fp32 | A100单机8卡（1x8） | fp32 | / | 361 | 1764.0 | 1861.9 | 1942.6 | 0.915 | 13.9/40.0
a100-1x8-fp32-bs96 | A100单机8卡（1x8） | fp32 | bs=96 | 334.7 | 2019.1 | 2135.8 | 2181.0 | 0.908 | 33.4/40.0
a100-1x1-fp32-bs96 | A100单机单卡（1x1） | fp32 | bs=96,lr=0.00015 | 720.8 | 283.7 | 286.1 | 287.9 | 0.912 | 32.7/40.0
a100-2x8-fp32-bs96 | A100两机8卡（2x8） | fp32 | bs=96 | 58.9 | 3531.1 | 3892.3 | 4058.3 | 0.911 | 32.9/40.0

distilbert training/metax/distilbert-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem
c500-1x8-fp32 | C500单机8卡（1x8） | fp32 | / | | | | | 0.908 | 37.0/64.0
c500-1x1-fp32 | C500单机单卡（1x1） | fp32 | / | | | | | | 35.1/64.0
c500-2x8-fp32 | C500两机8卡（2x8） | fp32 | / | | | | | | 36.7/64.0

distilbert training/kunlunxin/distilbert-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem
- | R300单机单卡（1x1） | fp32 | bs=32 | / | | | | / |
r300-1x8-fp32-bs32 | R300单机8卡（1x8） | fp32 | bs=32 | | | | | 0.911 | 13.5/32.0
- | R300两机8卡（2x8） | fp32 | bs=16 | / | | | | / |

glm training/nvidia/glm-pytorch/README.md f33ae772
id | 训练资源 | 配置文件 | 运行时长(s) | 目标精度 | 收敛精度 | Steps数 | 性能(samples/s)
a100-1x1-2023-08 | 单机1卡 | config_A100x1x1 | 17049.92 | 0.8 | 0.8044 | 9600 | 4.66
a100-1x2-2023-08 | 单机2卡 | config_A100x1x2 | 8621.41 | 0.8 | 0.8065 | 4800 | 9.24
a100-1x4-2023-08 | 单机4卡 | config_A100x1x4 | 5386.60 | 0.8 | 0.8052 | 3000 | 18.47
a100-1x8-2023-08 | 单机8卡 | config_A100x1x8 | 2755.73 | 0.8 | 0.8059 | 1500 | 36.56
a100-2x8-2023-08 | 两机8卡 | config_A100x2x8 | 1417.68 | 0.8 | 0.8008 | 750 | 72.73

glm training/iluvatar/glm-pytorch/README.md 75809c12
id | 训练资源 | 配置文件 | 运行时长(s) | 目标精度 | 收敛精度 | Steps数 | 性能(samples/s)
bi-v100-1x8-2023-03 | 单机8卡 | config_BI-V100x1x8 | 10120.93 | 0.8 | 0.8081 | 1500 | 9.82
- | 两机8卡 | config_BI-V100x2x8 | coming | 0.8 | coming | coming | coming

glm training/kunlunxin/glm-pytorch/README.md e0369635
id | 训练资源 | 配置文件 | 运行时长(s) | 目标精度 | 收敛精度 | Steps数 | 性能(samples/s)
r300-1x1-2023-04 | 单机1卡 | config_R300x1x1 | 121371.25 | 0.8 | 0.8021 | 14400(fp32) | 0.50
r300-1x2-2023-04 | 单机2卡 | config_R300x1x2 | 106709.60 | 0.8 | 0.8085 | 12000(fp32) | 0.92
r300-1x4-2023-04 | 单机4卡 | config_R300x1x4 | 44162.12 | 0.8 | 0.8027 | 4800(fp32) | 1.79
r300-1x8-2023-04 | 单机8卡 | config_R300x1x8 | 22902.82 | 0.8 | 0.8003 | 2400(fp32) | 3.47
r300-2x8-2023-04 | 两机8卡 | config_R300x2x8 | 16217.80 | 0.8 | 0.8012 | 1500(fp32) | 6.08

glm training/nvidia/glm-pytorch/README.md 269c1fd5
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | MFU
a100-1x8-fp32 | A100单机8卡（1x8） | fp32 | / | 2763 | 36.5 | 42.4 | 42.4 | 0.808 | 33.0/40.0 | 0.035
a100-1x8-fp32-bs16 | A100单机8卡（1x8） | fp32 | bs=16, lr=1e-05 | 2688 | 37.4 | 43.5 | 43.5 | 0.801 | 39.5/40.0 | 0.035
a100-1x1-fp32-bs16 | A100单机单卡（1x1） | fp32 | bs=16, lr=1e-05 | 7695 | 4.2 | 5.5 | 5.5 | | 35.0/40.0 | 0.036
a100-2x8-fp32-bs8 | A100两机16卡（2x8） | fp32 | bs=8, lr=1e-05 | 1409 | 72.7 | 84.7 | 84.9 | 0.804 | 31.0/40.0 | 0.036

glm training/nvidia/glm-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | MFU
a100-1x8-fp32 | A100单机8卡（1x8） | fp32 | / | 2763 | 36.5 | 42.4 | 42.4 | 0.808 | 33.0/40.0 | 0.035
a100-1x8-fp32-bs16 | A100单机8卡（1x8） | fp32 | bs=16, lr=1e-05 | 2688 | 37.4 | 43.5 | 43.5 | 0.801 | 39.5/40.0 | 0.035
a100-1x1-fp32-bs16 | A100单机单卡（1x1） | fp32 | bs=16, lr=1e-05 | / | 4.2 | 5.5 | 5.5 | / | 35.0/40.0 | 0.036
a100-2x8-fp32-bs8 | A100两机16卡（2x8） | fp32 | bs=8, lr=1e-05 | / | 72.7 | 84.7 | 84.9 | / | 31.0/40.0 | 0.036

glm training/metax/glm-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | MFU
c500-1x8-fp32 | C500单机8卡（1x8） | fp32 | / | | | | | 0.802 | 55.1/64.0 |
c500-1x1-fp32 | C500单机单卡（1x1） | fp32 | / | | | | | / | 55.6/64.0 |
c500-2x8-fp32 | C500两机16卡（2x8） | fp32 | / | | | | | / | 54.9/64.0 |

glm training/iluvatar/glm-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem
bi-v100-1x8-fp32-bs8 | BI-V100单机8卡（1x8） | fp32 | bs=8, lr=1e-05 | | | | | 0.806 | 29.7/32.0
bi-v100-1x1-fp32-bs8 | BI-V100单机单卡（1x1） | fp32 | bs=8, lr=1e-05 | / | | | | / | 28.8/32.0
bi-v100-2x8-fp32-bs8 | BI-V100两机8卡（2x8） | fp32 | bs=8, lr=1e-05 | / | | | | / | 28.3/32.0

glm training/kunlunxin/glm-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem
r300-1x1-fp32-bs4 | R300单机单卡（1x1） | fp32 | bs=4,lr=1e-05 | / | | | | / | 31.8/32.0
r300-1x8-fp32-bs5 | R300单机8卡（1x8） | fp32 | bs=5,lr=1e-05 | | | | | 80.52% | 31.8/32.0
r300-2x8-fp32-bs4 | R300两机8卡（2x8） | fp32 | bs=4,lr=1e-05 | / | | | | / | 31.7/32.0

glm training/dcu/glm-pytorch/README.md 1b5a0303
id | 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | MFU
k100-1x1-fp16-bs16 | K100单机单卡（1x1） | fp16 | bs=16, lr=1e-05 | / | / | / | / | / | 55.0/64.0 | /
k100-1x8-fp16-bs8 | K100单机8卡（1x8） | fp16 | bs=8, lr=1e-05 | / | / | / | / | 0.804 | 29.4/64.0 | /

llama2-70b training/nvidia/llama2_70B-megatron/README.md ebe6776e
id | 配置 | precision | parallel | fix_hp | token/p/s | loss | mem | MFU
h800-4x8-fp32-tp8-pp4 | H800四机32卡（4x8） | fp32 | TP8PP4DP1 | recompute=True,(theoryflops=495T) | 253.61 | 0.94 | 77/80 | 21.5%
h800-4x8-amp-tp8-pp4 | H800四机32卡（4x8） | amp | TP8PP4DP1 | / | 641.93 | 5.7 | 62/80 | 27.2%
h800-4x8-amp-tp4-pp8 | H800四机32卡（4x8） | amp | TP4PP8DP1 | / | 791.37 | 5.6 | 74/80 | 33.6%
h800-4x8-amp-tp4-pp8-gas1024 | H800四机32卡（4x8） | amp | TP4PP8DP1 | GAS=1024(GBS=1024=4M tokens) | 908.29 | 7.1 | 74/80 | 38.6%

llama2-70b training/nvidia/llama2_70B-megatron/README.md 1b5a0303
id | 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU
h800-4x8-fp32-tp8-pp4 | H800四机32卡（4x8） | fp32 | TP8PP4DP1 | recompute=True,(theoryflops=495T) | 253.61 | / | 77/80 | 21.5%
h800-4x8-amp-tp8-pp4 | H800四机32卡（4x8） | amp | TP8PP4DP1 | / | 641.93 | / | 62/80 | 27.2%
h800-4x8-amp-tp4-pp8 | H800四机32卡（4x8） | amp | TP4PP8DP1 | / | 791.37 | / | 74/80 | 33.6%
h800-4x8-amp-tp4-pp8-gas1024 | H800四机32卡（4x8） | amp | TP4PP8DP1 | GAS=1024(GBS=1024=4M tokens) | 908.29 | True | 74/80 | 38.6%

llama2-70b training/metax/llama2_70B-megatron/README.md 1b5a0303
id | 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU
- | C500四机32卡（4x8） | fp32 | TP8PP4DP1 | / | / | / | / | /
- | C500四机32卡（4x8） | amp | TP8PP4DP1 | / | / | / | / | /
c500-4x8-amp-tp4-pp8 | C500四机32卡（4x8） | amp | TP4PP8DP1 | / | / | / | 62/64 | /
c500-4x8-amp-tp4-pp8-gas1024 | C500四机32卡（4x8） | amp | TP4PP8DP1 | GAS=1024(GBS=1024=4M tokens) | / | True | 62/64 | /

llama2-70b training/kunlunxin/llama2_70B-megatron/README.md 1b5a0303
id | 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU
r300-10x8-fp32-tp8-pp10 | R300十机80卡（10x8） | fp32 | TP8PP10DP1 | / | / | / | 21/32 | /
r300-10x8-amp-tp8-pp10-gas1024 | R300十机80卡（10x8） | amp | TP8PP10DP1 | GAS=1024(GBS=1024=4M tokens) | / | doing* | 21/32 | /

llama3-8b training/nvidia/llama3_8B-megatron/README.md 1b5a0303
id | 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU
a100-1x8-bf16 | A100单机8卡（1x8） | bf16 | PP2DP4TP1 | / | 3698.7 | True(作为基线) | 76/80 | 56.9%
h100-1x8-bf16 | H100单机8卡（1x8） | bf16 | PP1DP4TP2 | / | 8103 | True | 71/80 | 39.3%
h100-1x8-fp8 | H100单机8卡（1x8） | bf16+fp8 | PP1DP4TP2 | / | 10486 | True | 74/80 | 25.4%-50.6%
h100-2x8-bf16 | H100二机16卡（2x8） | bf16 | PP1DP8TP2 | / | 7914 | True | 62/80 | 38.4%
h100-2x8-fp8 | H100二机16卡（2x8） | bf16+fp8 | PP1DP8TP2 | / | 10280 | True | 64/80 | 24.9%-49.9%
a100-1x8-pp4-dp2-tp1 | A100单机8卡（1x8） | bf16 | PP4DP2TP1 | / | 3306.5 | / | 59/80 | 50.0%
- | A100单机8卡（1x8） | bf16 | PP1DP8TP1 | / | / | / | OOM | /
a100-1x8-pp2-dp2-tp2 | A100单机8卡（1x8） | bf16 | PP2DP2TP2 | / | 3409.2 | / | 51/80 | 52.4%
a100-1x8-pp2-dp1-tp4 | A100单机8卡（1x8） | bf16 | PP2DP1TP4 | / | 3006.1 | / | 35/80 | 46.2%
a100-1x8-pp8-dp1-tp1 | A100单机8卡（1x8） | bf16 | PP8DP1TP1 | / | 2690.3 | / | 55/80 | 41.4%
a100-1x8-pp1-dp1-tp8 | A100单机8卡（1x8） | bf16 | PP1DP1TP8 | / | 2451.2 | / | 30/80 | 37.7%
a100-1x8-pp4-dp1-tp2 | A100单机8卡（1x8） | bf16 | PP4DP1TP2 | / | 3042.7 | / | 45/80 | 46.8%

llama3-8b training/metax/llama3_8B-megatron/README.md 1b5a0303
id | 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU
c500-1x8-bf16 | C500单机8卡（1x8） | bf16 | PP2DP2TP2 | / | / | True | 51.6/64.0 | 40.4%

llama2-7b-lora training/nvidia/llama2_7b_finetune-pytorch/README.md 1b5a0303
id | 配置 | fix_hp | token/p/s | loss | mem | acc(MMLU) | MFU
a100-1x1-fp32 | A100单机单卡（1x1） | / | 2788 | 1.64 | 37.3/40 | 0.38 | /
a100-1x1-fp16-bs4 | A100单机单卡（1x1） | 数据精度=fp16, local_batchsize=4 | 4017 | 1.77 | 32.0/40 | 0.43 | 36.1%

llama2-7b-lora training/metax/llama2_7b_finetune-pytorch/README.md 1b5a0303
id | 配置 | fix_hp | token/p/s | loss | mem | acc(MMLU) | MFU
c500-1x1-fp16-bs4 | C500单机单卡（1x1） | 数据精度=fp16, local_batchsize=4 | / | 1.72 | 32.0/64 | 0.41 | 36.2%

llama3.1-8b-lora docs/performance-summary.mdx 36044ad3
id | Model | GBS | MBS | GA | Seq Length | tokens_per_second_per_device
h100-1x1 | Llama3 8B | 32 | 2 | 16 | 4096 | 12472.87

qwen2.5-7b-lora docs/performance-summary.mdx 36044ad3
id | Model | GBS | MBS | GA | Seq Length | tokens_per_second_per_device
h100-1x1 | Qwen2.5 7B | 32 | 2 | 16 | 4096 | 14110.05

roofs base/benchmarks/computation-BF16/nvidia/A100/README.md 1b5a0303
id | 评测项 | matmul_bf16_mean
a100-1x8-bf16 | 评测结果 | 259.2TFLOPS

roofs base/benchmarks/computation-FP16/nvidia/A100/README.md 1b5a0303
id | 评测项 | matmul_fp16_mean
a100-1x8-fp16 | 评测结果 | 251.5TFLOPS

roofs base/benchmarks/computation-FP64/nvidia/A100/README.md 1b5a0303
id | 评测项 | matmul_fp64_mean
a100-1x8-fp64 | 评测结果 | 17.8TFLOPS

roofs base/benchmarks/computation-TF32/nvidia/A100/README.md 1b5a0303
id | 评测项 | matmul_tf32_mean
a800-1x8-tf32 | 评测结果 | 123.68TFLOPS

roofs base/benchmarks/computation-FP32/nvidia/A100/README.md 1b5a0303
id | 评测项 | matmul_fp32_mean
a100-a800-2x8-fp32 | 评测结果 | 19.05TFLOPS

roofs base/benchmarks/main_memory-bandwidth/nvidia/A100/README.md 1b5a0303
id | 评测项 | memory_bandwidth_mean
a100-1x8-memory | 评测结果 | 1328.25GB/s

roofs base/benchmarks/interconnect-h2d/nvidia/A100/README.md 1b5a0303
id | 评测项 | h2d_pageable_mean
a100-1x8-h2d | 评测结果 | 7.19GB/s

roofs base/benchmarks/interconnect-MPI_intraserver/nvidia/A100/README.md 1b5a0303
id | 评测项 | all_reduce_mean
a100-1x8-all-reduce | 评测结果 | 467.87GB/s

roofs base/benchmarks/interconnect-MPI_interserver/nvidia/A100/README.md 1b5a0303
id | 评测项 | all_reduce_mean
a100-2x8-all-reduce | 评测结果 | 45.11GB/s

roofs base/benchmarks/computation-BF16/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | matmul_bf16_mean
bi150-1x8-bf16 | 评测结果 | 196.77TFLOPS

roofs base/benchmarks/computation-FP16/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | matmul_fp16_mean
bi150-1x8-fp16 | 评测结果 | 196.47TFLOPS

roofs base/benchmarks/computation-FP32/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | matmul_fp32_mean
bi150-1x8-fp32 | 评测结果 | 38.72TFLOPS

roofs base/benchmarks/main_memory-bandwidth/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | memory_bandwidth_mean
bi150-1x8-memory | 评测结果 | 590.01GB/s

roofs base/benchmarks/interconnect-h2d/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | h2d_pinned_mean
bi150-1x8-h2d | 评测结果 | 7.04GB/s

roofs base/benchmarks/interconnect-MPI_intraserver/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | all_reduce_mean
bi150-1x8-all-reduce | 评测结果 | 92.48GB/s

roofs base/benchmarks/interconnect-MPI_interserver/iluvatar/BI150/README.md 1b5a0303
id | 评测项 | all_reduce_mean
bi150-2x8-all-reduce | 评测结果 | 15.56GB/s

roofs base/benchmarks/main_memory-bandwidth/metax/C550/README.md 1b5a0303
id | 评测项 | memory_bandwidth_mean
c550-1x2-memory | 评测结果 | 1390.5GB/s

roofs base/benchmarks/computation-BF16/ascend/README.md 1b5a0303
id | 评测项 | matmul_bf16_mean
ascend-1x8-bf16 | 评测结果 | 304.277

roofs base/benchmarks/computation-FP16/ascend/README.md 1b5a0303
id | 评测项 | matmul_fp16_mean
ascend-1x8-fp16 | 评测结果 | 313.182TFLOPS

roofs base/benchmarks/computation-FP32/ascend/README.md 1b5a0303
id | 评测项 | matmul_fp32_mean
ascend-1x8-fp32 | 评测结果 | 82.920TFLOPS

roofs compute/accelerator/README.md 744d01e1
id | Accelerator | mamf_bf16 | Best Shape MxNxK | torch version | Notes
gaudi2-1x1-mamf-bf16 | Intel Gaudi 2 | 418.7 | 14336x15360x2048 | 2.6.0+hpu_1.21.2-76.gitabf798b | PT_HPU_LAZY_MODE=1
a100-sxm-1x1-mamf-bf16 | NVIDIA A100 SXM | 271.2 | 1024x10240x5120 | 2.6.0+cu126 |
gh200-1x1-mamf-bf16 | NVIDIA GH200 SXM | 828.6 | 1024x15360x4096 | 2.6.0+cu126 | 900W 141GiB HBM3e version
a100-pcie-1x1-mamf-bf16 | NVIDIA A100 PCIe | 252.9 | 2048x5120x6144 | 2.5.1+cu124 |
h100-1x1-mamf-bf16 | NVIDIA H100 SXM | 794.5 | 2048x2048x13312 | 2.7.0+cu126 | H200 is the same
b300-1x1-mamf-bf16 | NVIDIA B300 SXM | 1769.0 | 12288x18432x1024 | 2.9.1+cu130 | same as B200, newer torch/cuda
b200-1x1-mamf-bf16 | NVIDIA B200 SXM | 1745.0 | 1792x16128x3072 | 2.7.1+cu128 |
gaudi3-1x1-mamf-bf16 | Intel Gaudi 3 | 1243.0 | 16384x4096x768 | 2.6.0+hpu_1.21.4-3.gitabf798b | PT_HPU_LAZY_MODE=1
gb200-1x1-mamf-bf16 | NVIDIA GB200 SXM | 1822.0 | 4096x9728x2048 | 2.10.0.dev20250916+cu130 |
mi355x-1x1-mamf-bf16 | AMD MI355X | 1565.0 | 12288x8192x8192 | 2.8.0+rocm7.0.2.git245bf6ed | PYTORCH_TUNABLEOP_ENABLED=0
mi325x-1x1-mamf-bf16 | AMD MI325X | 784.9 | 13312x10240x8192 | 2.6.0+6.2.4 | PYTORCH_TUNABLEOP_ENABLED=1, 1000W
mi300x-1x1-mamf-bf16 | AMD MI300X | 668.4 | 10240x15360x8192 | 2.5.1+6.3.42131 | PYTORCH_TUNABLEOP_ENABLED=1

roofs compute/accelerator/README.md 744d01e1
id | Accelerator | mamf_fp8 | Best Shape MxNxK | torch version | Notes
gaudi2-1x1-mamf-fp8 | Intel Gaudi 2 | 826.5 | 6144x11264x5120 | 2.6.0+hpu_1.21.2-76.gitabf798b | PT_HPU_LAZY_MODE=1
gh200-1x1-mamf-fp8 | NVIDIA GH200 SXM | 1535.0 | 1024x14336x14336 | 2.6.0+cu126 | 900W 141GiB HBM3e version
gaudi3-1x1-mamf-fp8 | Intel Gaudi 3 | 1289.5 | 16640x1536x3072 | 2.6.0+hpu_1.21.4-3.gitabf798b | PT_HPU_LAZY_MODE=1
b200-1x1-mamf-fp8 | NVIDIA B200 SXM | 3432.5 | 15360x4096x3072 | 2.7.1+cu128 |
b300-1x1-mamf-fp8 | NVIDIA B300 SXM | 3353.3 | 3072x6144x7168 | 2.9.1+cu130 |
h200-1x1-mamf-fp8 | NVIDIA H200 SXM | 1453.4 | 1280x4096x12032 | 2.7.1+cu128 |
gb200-1x1-mamf-fp8 | NVIDIA GB200 SXM | 3615.6 | 19456x5120x1536 | 2.10.0.dev20250916+cu130 |
h100-1x1-mamf-fp8 | NVIDIA H100 SXM | 1402.6 | 1024x9216x14336 | 2.7.0+cu126 |
"""  # noqa: E501


def published_tables() -> Iterator[Published]:
    for block in TEXT.strip().split("\n\n"):
        first, *lines = block.splitlines()
        case, file, commit = first.split()
        headings, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
        cells = [dict(zip(headings, row, strict=True)) for row in rows]
        yield Published(file, commit, [(CLAIMS.get(f"{case}/{row.pop('id')}"), row) for row in cells])


TABLES = tuple(published_tables())
NAMES = {
    "mem": "mem_peak",
    "acc(MMLU)": "acc",
    "MFU": "mfu",
    "*MFU": "mfu",
    "*p_infer_core": "p_infer_core",
    "token/p/s": "tokens_per_second_per_device",
    "运行时长(s)": "e2e_time",
    "收敛精度": "acc",
    "性能(samples/s)": "p_whole",
}
LABELS = (
    *("配置", "评测项", "推理工具", "precision", "parallel", "fix_hp", "训练资源", "配置文件"),
    *("Accelerator", "Model"),
)
SHAPE, TORCH = "Best Shape MxNxK", "torch version"
# Of the tables of 2023: the target is in the stop rule, the steps are in a note.
BATCH = ("GBS", "MBS", "GA", "Seq Length")
SETTINGS = ("目标精度", "Steps数", SHAPE, TORCH, "Notes", *BATCH)


def printed(metric: PublishedValue) -> list[float]:
    """What a claim says of a cell: the value, and the total where it has one."""
    return [metric.value] if metric.of is None else [metric.value, metric.of]


def numbers(cell: str) -> list[float]:
    """What a cell says, `36.1%` as 0.361; empty for one that says nothing."""
    if cell in ("", "/", "coming", "OOM"):
        return []
    cell = cell.partition("%-")[0] + "%" if "%-" in cell else cell  # of a range, the lower end
    cell = cell.removesuffix("TFLOPS").removesuffix("GB/s")
    if cell.endswith("%"):
        return [float(cell[:-1]) / 100]
    return [float(part) for part in cell.split("/")]


@pytest.mark.parametrize("published", TABLES, ids=lambda t: f"{'-'.join(t.file.split('/')[1:3])}-{t.commit}")
def test_every_cell_is_a_value_and_every_value_a_cell(published: Published) -> None:
    for claim, cells in published.rows:
        expected = {
            NAMES.get(name, name): numbers(cell)
            for name, cell in cells.items()
            if name not in (*LABELS, *SETTINGS, ALIGNED) and numbers(cell)
        }
        assert (claim is None) == (not expected)
        if claim is None:
            continue
        labels = [cells[label] for label in LABELS if label in cells]
        assert [part.strip() for part in claim.row.split("|")] == labels
        assert_settings(claim, cells)
        # What a later version took out is a value of the earlier one only.
        at = {m.name: m for m in claim.metrics if published.commit in (*FIRST, (m.source or claim.source).commit)}
        assert {name: printed(metric) for name, metric in at.items()} == {
            name: pytest.approx(values, rel=1e-12) for name, values in expected.items()
        }


def assert_settings(claim: Claim, cells: dict[str, str]) -> None:
    """The cells of a row that are no measurement, where its table has them."""
    if "precision" in cells:
        assert claim.precision.label == cells["precision"]
    if SHAPE in cells:
        sizes = dict(zip("mnk", map(int, cells[SHAPE].split("x")), strict=True))
        assert (claim.run.set, claim.conditions["torch"]) == (sizes, cells[TORCH])
        assert claim.conditions["shape"] == cells[SHAPE].replace("x", " x ")
    if "GBS" in cells:
        assert claim.conditions["batch_size"] == int(cells["MBS"])
        assert claim.conditions["gradient_accumulation_steps"] == int(cells["GA"])
        assert claim.conditions["sequence_length"] == int(cells["Seq Length"])
        assert int(cells["GBS"]) == int(cells["MBS"]) * int(cells["GA"])
    if ALIGNED in cells:
        assert claim.aligned == {"True": True, "True(作为基线)": True}.get(cells[ALIGNED])


def test_every_claim_is_a_row_of_its_own_source() -> None:
    found = {claim.id: (t.file, t.commit) for t in TABLES if t.commit not in FIRST for claim, _ in t.rows if claim}
    assert found == {claim.id: (claim.source.file, claim.source.commit) for claim in CLAIMS.values()}
