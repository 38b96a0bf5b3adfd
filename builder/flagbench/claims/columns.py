"""What the columns of a published table are called, in English and in Chinese, and in which units they are."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

RATES = ("p_core", "p_train", "p_whole", "p_infer_core", "p_infer_whole", "p_val_core", "p_val_whole")
PER_DEVICE = "tokens_per_second_per_device"
THROUGHPUT = "throughput"
"""A speed whose column does not say which; it is taken as the gate of the case."""
METRICS = (*RATES, PER_DEVICE, THROUGHPUT, "e2e_time", "mfu", "hfu", "acc", "loss", "mem_peak")

_NAMES = """
id: id claim claim_id
case: case model workload benchmark model_name 模型 模型名称 用例 任务
device: device device_model accelerator gpu gpu_model gpu_type card hardware chip
  device_name accelerator_model 加速卡 加速卡型号 硬件 设备 型号 显卡 芯片 硬件设备 硬件设备简称 机器、加速卡型号
config: config config_label configuration setup row label title system 配置 机器配置 配置名称
nodes: nodes node nnodes num_nodes n_nodes machines hosts servers 节点 节点数 机器数 机数
per_node: gpus_per_node devices_per_node cards_per_node nproc nproc_per_node per_node
  单机卡数 每机卡数 每节点卡数
gpus: gpus num_gpus n_gpus ngpus
devices: devices total_gpus total_devices world_size cards num_devices n_devices
  accelerators ranks ndevices 卡数 总卡数 设备数 加速卡数
precision: precision dtype data_type numeric_precision precision_label 精度 数据精度
executed: executed executed_precision compute_precision precision_executed math_mode
settings: fix_hp hyperparameters hyper_parameters changed_hyperparameters settings
  notes_on_hyperparameters hp 超参修改 超参 修改超参
batch_size: batch_size bs batch local_batch_size local_batchsize lbs micro_batch_size
  mbs batch_per_device per_device_batch_size batchsize 批大小 批尺寸
global_batch_size: global_batch_size gbs global_batchsize global_batch 全局批大小
sequence_length: sequence_length seq_len seq_length seqlen sequence mpe max_seq_len 序列长度
gradient_accumulation_steps: gradient_accumulation_steps gas grad_accum
  gradient_accumulation accumulation gradient_accumulate_steps acc_steps 梯度累加 梯度累加步数
learning_rate: learning_rate lr 学习率
max_epochs: max_epochs epoch_limit
epochs: epochs n_epochs num_epochs 轮数
choices: choices num_choices candidates
recompute: recompute recomputation activation_checkpointing checkpointing 重计算
attention: attention attn flash_attention attention_backend
layout: layout parallelism parallel 并行策略 parallel_strategy 并行方式
seed: seed 随机种子
workers: workers num_workers loader_workers dataloader_workers
stop_rule: stop_rule stop stopping_rule
division: division
converged: converged convergence 收敛 是否收敛
torch: torch pytorch torch_version framework_version
cuda: cuda cuda_version
driver: driver driver_version 驱动 驱动版本
memory_total: memory_total mem_total total_memory memory_capacity device_memory
  gpu_memory card_memory 显存容量 总显存
e2e_time: e2e_time e2e end_to_end_time time_to_train total_time end_to_end wall_time
  training_time ttt 端到端时间 总时间 训练时间
p_whole: p_whole performance_whole whole_throughput overall_throughput ips_whole
  throughput_raw 总吞吐量 整体吞吐量
p_train: p_train performance_train train_throughput training_throughput ips_train
  throughput_no_eval 训练吞吐量
p_core: p_core performance_core core_throughput compute_throughput ips_core
  throughput_pure_compute 计算吞吐量
p_infer_whole: p_infer_whole p_inference_whole inference_whole 推理总吞吐量
p_infer_core: p_infer_core p_inference_core inference_core 推理计算吞吐量
p_val_whole: p_val_whole p_validation_whole 验证总吞吐量
p_val_core: p_val_core p_validation_core 验证计算吞吐量
tokens_per_second_per_device: tokens_per_second_per_device token_p_s tokens_p_s
  tokens_per_gpu_per_second tokens_s_gpu tok_s_gpu tokens_per_second_per_gpu tgs
  tokens_per_sec_per_gpu token_per_second_per_gpu tokens_s_device tokens_s_card
throughput: throughput ips samples_s samples_per_second samples_per_sec tokens_s
  tokens_per_second tok_s qps speed performance sps samples_s_total sequences_s seq_s
  吞吐量 吞吐 性能 速度
mfu: mfu model_flops_utilization utilization utilisation 计算卡使用率 计算使用率 算力利用率
hfu: hfu hardware_flops_utilization
acc: acc accuracy final_accuracy acc_mmlu mmlu mlm_accuracy eval_accuracy 准确率 精确率 训练结果
loss: loss final_loss train_loss 损失 推理结果
mem_peak: mem_peak mem memory peak_memory memory_used gpu_memory_used mem_used
  max_memory vram memory_peak peak_mem 显存 显存占用 硬件存储使用 内存
metric: metric metric_name indicator 指标 指标名称
value: value 指标值 数值 值
unit: unit units 单位
aligned: aligned loss_aligned alignment
image: image published_image container docker_image
"""
"""By field, what publishers call its column; words are joined by `_`. Indented lines continue the one above."""
_FIELDS = {
    unicodedata.normalize("NFKC", name): field
    for field, _, names in (line.partition(":") for line in _NAMES.replace("\n  ", " ").strip().splitlines())
    for name in names.split()
}

_PARTS = (
    (("global", "batch"), "global_batch_size"),
    (("batch",), "batch_size"),
    (("precision",), "precision"),
    (("mfu",), "mfu"),
    (("accuracy",), "acc"),
    (("peak", "mem"), "mem_peak"),
    (("gpu", "model"), "device"),
    (("gpu", "name"), "device"),
)
"""Words by which a longer header is known, the more telling first."""

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "秒": 1.0} | {
    **dict.fromkeys(("min", "mins", "minute", "minutes", "分钟"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "小时"), 3600.0),
}
_GIB = {
    "b": 2.0**-30,
    "kib": 2.0**-20,
    "mib": 2.0**-10,
    "mb": 2.0**-10,
    "gib": 1.0,
    "gb": 1.0,
    "g": 1.0,
    "tib": 1024.0,
}
"""GB is read as GiB: a card of 80 GiB is sold as one of 80 GB."""
_EACH = r"(?:gpu|device|card|chip|accelerator|p|rank|卡|设备)"
_RATE_UNIT = re.compile(
    rf"(?P<kilo>k|m)?\s*(?P<what>samples?|seqs?|sequences?|sentences?|images?|tokens?|tok|样本|词元)\s*"
    rf"(?:/\s*(?P<each>{_EACH})\s*)?(?:/|per)\s*(?:s|sec|second|秒)\s*(?:(?:/|per)\s*(?P<each2>{_EACH}))?"
)


def scale_of_unit(field: str, unit: str) -> float | None:
    """What a number is multiplied by for the unit behind it, which counts more than the header's: `1.2 h` is 4320 s,
    `33400 MiB` 32.6 GiB, `1.9k` 1900. None where that is no unit of the field."""
    if field == "e2e_time":
        return _SECONDS.get(unit.lower())
    if field in ("mem_peak", "memory_total"):
        return _GIB.get(unit.lower())
    if field in (*RATES, THROUGHPUT, PER_DEVICE):
        return {"k": 1e3, "K": 1e3, "M": 1e6}.get(unit)
    return None


@dataclass(frozen=True)
class Column:
    """What a column holds."""

    field: str
    scale: float = 1.0
    """What a value is multiplied by: 60 for minutes, 0.01 for a column of percentages."""
    counts: str | None = None
    """`samples` or `tokens`, where the header says what a speed counts."""
    per_device: bool = False
    """Whether the header says that a speed is that of one device."""


def column(header: str) -> Column | None:
    """What a header means, or None if it is not known.

    A unit may follow in brackets, after a comma or after a slash: `e2e_time (min)`, `memory, GiB`, `MFU [%]`.
    """
    text = unicodedata.normalize("NFKC", header).strip().lower()
    text = re.sub(r"[*`\\]", "", text).strip()
    whole = _FIELDS.get(_key(text))
    text = re.sub(r"_(sample|token)s?_(?:per_)?(?:s|sec|second)$", r" (\1s/s)", text)
    name, unit = _split(text)
    field = whole or _FIELDS.get(_key(name))
    rate = _RATE_UNIT.search(text)
    if field is None and rate is None:
        field = next((field for words, field in _PARTS if all(word in text for word in words)), None)
    if field is None and rate:
        field = _FIELDS.get(_key(text[: rate.start()])) or THROUGHPUT
    if field is None:
        return None
    if field in (*RATES, THROUGHPUT, PER_DEVICE):
        return _speed(field, rate, text)
    if field == "e2e_time":
        return Column(field, _SECONDS.get(unit, 1.0))
    if field in ("mem_peak", "memory_total"):
        return Column(field, _GIB.get(unit, 1.0))
    if field in ("mfu", "hfu", "acc") and (unit in ("%", "percent", "pct") or name.endswith("%")):
        return Column(field, 0.01)
    return Column(field)


def _speed(field: str, rate: re.Match[str] | None, text: str) -> Column:
    if field == PER_DEVICE:
        return Column(field, counts="tokens", per_device=True)
    if rate is None:
        each = re.search(rf"(?:/|per[ _-])\s*{_EACH}\b", text) is not None
        return Column(field, per_device=each)
    counts = "tokens" if rate["what"].startswith(("tok", "词元")) else "samples"
    each = bool(rate["each"] or rate["each2"])
    scale = {"k": 1e3, "m": 1e6}.get(rate["kilo"] or "", 1.0)
    if field == THROUGHPUT and counts == "tokens" and each:
        field = PER_DEVICE
    return Column(field, scale, counts, each)


def _split(text: str) -> tuple[str, str]:
    """A header's name and its unit."""
    if match := re.fullmatch(r"(.*?)\s*[(\[]\s*([^()\[\]]*)\s*[)\]]\s*(.*)", text):
        return f"{match[1]} {match[3]}".strip(), match[2].strip()
    for separator in (",", "/", " in ", "_"):
        name, found, unit = text.rpartition(separator)
        if found and unit.strip() in {*_SECONDS, *_GIB, "%", "pct", "percent"}:
            return name.strip(), unit.strip()
    return (text[:-1].strip(), "%") if text.endswith("%") else (text, "")


def _key(text: str) -> str:
    return re.sub(r"[\s\-/.]+", "_", text).strip("_")
