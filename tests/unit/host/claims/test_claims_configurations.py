"""The claims against themselves, and against the publisher's own configuration files and READMEs at the cited commit.

The tables below are what those files say; a base configuration holds what a vendor's file leaves out. A row's own
words (`bs=16`) override its file, and then what only the file says is either an assumption that an anomaly
`config-file` names, or `not published`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim
from tools.claim_rules import contradicted

CLAIMS = {claim.id: claim for claim in CATALOG.claims.values() if claim.source.project == "FlagPerf"}
TRAINED = {name: claim for name, claim in CLAIMS.items() if CATALOG.cases[claim.case].kind != "measure"}
"""Those with a configuration file of hyper-parameters, and a README that names the software."""
LIMIT = 1388270 * 4


def glm(batch_size: int, eval_batch_size: int, max_samples: int = LIMIT, **own: Any) -> dict[str, Any]:
    """training/VENDOR/glm-pytorch/config over training/benchmarks/glm/pytorch/config/_base.py."""
    base = {"learning_rate": 1e-5, "seed": 10483, "fp16": True, "workers": 4, "decay_steps": 4338, **own}
    return {"batch_size": batch_size, "eval_batch_size": eval_batch_size, "max_samples": max_samples, **base}


def distilbert(batch_size: int, accumulated: int = 1, **own: Any) -> dict[str, Any]:
    """The same of DistilBERT."""
    base = {"learning_rate": 5e-5, "workers": 8, "eval_batch_size": 4, "seed": 0, "max_epochs": 10, **own}
    return {"batch_size": batch_size, "gradient_accumulation_steps": accumulated, **base}


def lora(batch_size: int, fp16: bool, learning_rate: float = 1e-4) -> dict[str, Any]:
    """The same of Llama2-7B; its seed, 42, is applied nowhere."""
    own = {"batch_size": batch_size, "fp16": fp16, "learning_rate": learning_rate}
    return {**own, "workers": 1, "max_epochs": 3}


ADAMW = "AdamW(betas=0.9/0.95, eps=1e-08, weight_decay=0.01)"


def megatron(accumulated: int, tp: int, pp: int, **own: Any) -> dict[str, Any]:
    """training/VENDOR/llama2_70B-megatron/config and its adapter over benchmarks/llama2_70B/megatron_main.sh."""
    base = {
        "batch_size": 1,
        "sequence_length": 4096,
        "precision": "bf16",
        "recompute": "none",
        "attention": "flash-attn",
        "optimizer": f"{ADAMW}, distributed",
        "learning_rate": 1.5e-4,
        "seed": 1234,
        "schedule": "cosine to 1e-05 over 24414 samples, warm-up 0.01",
    }
    return {**base, "gradient_accumulation_steps": accumulated, "layout": f"dp1 tp{tp} pp{pp}", **own}


def llama3(**own: Any) -> dict[str, Any]:
    """pretrain_llama3.sh, and what Megatron-LM core_v0.6.0 makes of what it does not pass; a row has the rest."""
    base = {
        "batch_size": 1,
        "sequence_length": 8192,
        "precision": None,
        "recompute": "none",
        "layers": 32,
        "dropout": 0.1,
        "optimizer": "AdamW(betas=0.9/0.95, eps=1e-08, weight_decay=0.1), distributed",
        "learning_rate": 1e-5,
        "seed": 1234,
        "schedule": "cosine to 1e-06 over 153600 samples, warm-up 0",
        "transformer": "transformer_engine",
        "layout": None,
        "gradient_accumulation_steps": None,
    }
    return {**base, **own}


GLM = {
    ("nvidia-1b5a0303", "1x1"): glm(16, 16, 24135),
    ("nvidia-1b5a0303", "1x8"): glm(8, 8),
    ("nvidia-1b5a0303", "2x8"): glm(8, 8),
    ("metax-1b5a0303", "1x1"): glm(16, 16, 24135),
    ("metax-1b5a0303", "1x8"): glm(16, 16),
    ("metax-1b5a0303", "2x8"): glm(16, 16, learning_rate=2e-5),
    ("iluvatar-1b5a0303", "1x1"): glm(8, 8, 24135),
    ("iluvatar-1b5a0303", "1x8"): glm(8, 8),
    ("iluvatar-1b5a0303", "2x8"): glm(8, 8),
    ("kunlunxin-1b5a0303", "1x1"): glm(4, 4, 4000, seed=4096, fp16=False),
    ("kunlunxin-1b5a0303", "1x8"): glm(5, 5, seed=4096, fp16=False),
    ("kunlunxin-1b5a0303", "2x8"): glm(4, 4, 20000, seed=4096, fp16=False),
    ("dcu-1b5a0303", "1x1"): glm(16, 16, 24135),
    ("dcu-1b5a0303", "1x8"): glm(8, 8),
    **{("nvidia-f33ae772", shape): glm(8, 8) for shape in ("1x1", "1x2", "1x4", "1x8", "2x8")},
    ("iluvatar-75809c12", "1x8"): glm(8, 4),
    **{
        ("kunlunxin-e0369635", shape): glm(4, 6, seed=4096, fp16=False)
        for shape in ("1x1", "1x2", "1x4", "1x8", "2x8")
    },
}
DISTILBERT = {
    ("nvidia-1b5a0303", "1x1"): distilbert(32, 8),
    ("nvidia-1b5a0303", "1x8"): distilbert(32),
    ("nvidia-1b5a0303", "2x8"): distilbert(16),
    ("metax-1b5a0303", "1x1"): distilbert(96, learning_rate=1e-5),
    ("metax-1b5a0303", "1x8"): distilbert(96),
    ("metax-1b5a0303", "2x8"): distilbert(96),
    ("kunlunxin-1b5a0303", "1x8"): distilbert(32, workers=1),
}
LORA = {
    ("nvidia-1b5a0303", "1x1"): lora(2, fp16=False),
    ("metax-1b5a0303", "1x1"): lora(4, fp16=True, learning_rate=1e-6),
}
LLAMA2_70B = {
    ("nvidia-1b5a0303", "4x8"): megatron(44, 8, 4),
    ("metax-1b5a0303", "4x8"): megatron(1024, 4, 8, recompute=NOT_PUBLISHED),
    ("kunlunxin-1b5a0303", "10x8"): megatron(
        44, 8, 10, recompute="full", attention="unfused", optimizer=ADAMW, precision="fp32"
    ),
}
LLAMA3_8B = {
    ("nvidia-1b5a0303", "1x8"): llama3(),
    ("nvidia-1b5a0303", "2x8"): llama3(),
    ("metax-1b5a0303", "1x8"): llama3(dropout=NOT_PUBLISHED, recompute=NOT_PUBLISHED, transformer="local"),
}
# The command line of main.sh, and two workers by default.
AQUILA = {("benchmarks-db1edaa2", "1x8"): {"batch_size": 1, "sequence_length": 4096, "workers": 2}}
FILES = {
    "aquila-33b": AQUILA,
    "glm": GLM,
    "distilbert": DISTILBERT,
    "llama2-70b": LLAMA2_70B,
    "llama2-7b-lora": LORA,
    "llama3-8b": LLAMA3_8B,
}

# What each README says of software; empty where it does not.
READMES = """
case | source | torch | cuda | driver | os | kernel | docker
aquila-33b | benchmarks-db1edaa2 | 1.12.0a0+8a1a93a | 11.8 | 470.129.06 | Ubuntu 20.04 | 5.4.0-113-generic | 20.10.16
distilbert | nvidia-1b5a0303 | 1.12.0a0+bd13bc6 | 11.6 | 470.129.06 | Ubuntu 20.04 | 5.4.0-113-generic | 20.10.16
distilbert | metax-1b5a0303 | 2.0.0+mc2.18.0.8 | | 2.2.0 | Ubuntu 20.04.6 | 5.4.0-26-generic | 24.0.7
distilbert | kunlunxin-1b5a0303 | 1.12.1+cpu | | 4.0.25 | Ubuntu 20.04 | 5.4.0-26-generic |
glm | nvidia-1b5a0303 | 1.8.0a0+52ea372 | | 470.129.06 | Ubuntu 20.04 | 5.4.0-113-generic | 20.10.16
glm | nvidia-f33ae772 | 1.8.0a0+52ea372 | | 470.129.06 | Ubuntu 20.04 | 5.4.0-113-generic | 20.10.16
glm | metax-1b5a0303 | 2.0.0+mc2.23.0.16 | | 2.3.0 | Ubuntu 20.04.6 | 5.4.0-26-generic | 24.0.7
glm | iluvatar-1b5a0303 | 1.13.1+corex.3.1.0 | | 3.1.0 | Ubuntu 20.04 | 5.4.0-148-generic x86_64 | 20.10.8
glm | iluvatar-75809c12 | 1.10.2+corex.3.0.0 | | 3.0.0 | Ubuntu 20.04 | 4.15.0-156-generic x86_64 | 20.10.8
glm | kunlunxin-1b5a0303 | 1.12.1+cpu | | 4.0.25 | Ubuntu 20.04 | 5.4.0-26-generic |
glm | kunlunxin-e0369635 | 1.12.1+cpu | | 4.0.25 | Ubuntu 20.04 | 5.4.0-26-generic |
glm | dcu-1b5a0303 | 1.13.1+git7d2dd01.abi0.dtk2310 | | dtk-23.10.1 | centos 7.6 | 4.18.0-348.el8.0.2.x86_64 | 24.0.7
llama2-70b | nvidia-1b5a0303 | | | 535.129.03 | Ubuntu 22.04 LTS | 5.15.0-25-generic | 24.0.7
llama2-70b | metax-1b5a0303 | | | 2.2.0 | Ubuntu 20.04.6 | 5.4.0-26-generic | 24.0.7
llama2-70b | kunlunxin-1b5a0303 | 2.0.1 | | 4.0.25 | Ubuntu 20.04 | 5.4.0-26-generic |
llama3-8b | nvidia-1b5a0303 | | | 470.141.10 | Ubuntu 20.04 | 5.4.0-126-generic | 20.10.18
llama3-8b | metax-1b5a0303 | 2.0.0+mc2.23.0.13 | | 2.3.0 | Ubuntu 20.04.6 | 5.4.0-26-generic | 24.0.7
llama2-7b-lora | nvidia-1b5a0303 | | | 470.129.06 | Ubuntu 20.04.4 | 5.4.0-113-generic | 20.10.16
llama2-7b-lora | metax-1b5a0303 | | | 2.2.0 | Ubuntu 20.04.6 | 5.4.0-26-generic | 24.0.7
"""


def version(claim: Claim) -> str:
    """The vendor and the commit of a claim's source."""
    return f"{claim.source.file.split('/')[1]}-{claim.source.commit}"


def own_words(claim: Claim) -> dict[str, Any]:
    """What the row itself says of hyper-parameters: the cell fix_hp."""
    cell = claim.row.split("|")[-1]
    found: dict[str, Any] = {}
    if batch := re.search(r"(?:bs|local_batchsize)=([0-9]+)", cell):
        found["batch_size"] = int(batch[1])
    if rate := re.search(r"lr=([0-9.e-]+)", cell):
        found["learning_rate"] = float(rate[1])
    if "精度=fp16" in cell:
        found["fp16"] = True
    if claim.case == "llama2-70b":
        found.update(own_words_of_megatron(claim.row))
    if layout := re.search(r"PP([0-9]+)DP([0-9]+)TP([0-9]+)", claim.row):
        pp, dp, tp = layout.groups()
        found.update(layout=f"dp{dp} tp{tp} pp{pp}", gradient_accumulation_steps=512 // int(dp))
        found["precision"] = "fp8" if "fp8" in claim.row else "bf16"
    return found


def own_words_of_megatron(row: str) -> dict[str, Any]:
    """The same of Llama2-70B, whose READMEs say that 44 micro-batches are the default, and 100 steps of 1024."""
    found: dict[str, Any] = {"gradient_accumulation_steps": 44}
    if layout := re.search(r"TP([0-9]+)PP([0-9]+)DP([0-9]+)", row):
        tp, pp, dp = layout.groups()
        found["layout"] = f"dp{dp} tp{tp} pp{pp}"
    if "GAS=1024" in row:
        found["gradient_accumulation_steps"] = 1024
        found["schedule"] = "cosine to 1e-05 over 102400 samples, warm-up 0.01"
    if "| fp32 |" in row and "theoryflops=495T" in row:
        found["precision"], found["attention"] = "tf32", "unfused"
    if "| amp |" in row:
        found["precision"] = "bf16"
    if "recompute=True" in row:
        found["recompute"] = "selective"
    return found


@pytest.mark.parametrize("claim", TRAINED.values(), ids=TRAINED)
def test_conditions_are_those_of_the_cited_configuration(claim: Claim) -> None:
    shape = f"{claim.run.nodes}x{claim.run.gpus}"
    file = FILES[claim.case][version(claim), shape]
    row = own_words(claim)
    overridden = {name for name, value in row.items() if file[name] not in (None, value)}
    expected = {**file, **row}
    assert_precision(claim, expected.pop("fp16", None))
    assert_schedule(claim, expected.pop("decay_steps", None), expected.pop("max_samples", None))
    silent = {name for name in expected if claim.conditions[name] == NOT_PUBLISHED}
    may_be_silent = {anomaly.field for anomaly in claim.anomalies if anomaly.id.endswith("-unknown")}
    if "batch_size" in overridden:
        # Only a row that has another batch than its file may leave open what goes with the batch.
        may_be_silent |= {"eval_batch_size", "gradient_accumulation_steps"}
    assert silent <= may_be_silent
    for name in expected.keys() - silent:
        assert claim.conditions[name] == expected[name], name
    if overridden - {"schedule"}:
        assert "config-file" in {anomaly.id for anomaly in claim.anomalies}


def assert_precision(claim: Claim, fp16: Any) -> None:
    """`fp16`: the switch in the file; without it the publisher's torch computes in the case's default."""
    if fp16 is None:
        return
    default = {"glm": "fp32"}.get(claim.case, "tf32")
    assert claim.conditions["precision"] == ("fp16" if fp16 else default)


def assert_schedule(claim: Claim, steps: Any, limit: Any) -> None:
    """`steps`: the file's number of updates, of which a tenth is warm-up; `limit`: its number of samples."""
    if steps is None:
        return
    schedule = f"linear warm-up {steps * 0.1:.1f} steps, then linear to 0.1 over {steps * 0.9:.1f} steps"
    assert claim.conditions["schedule"] == schedule
    assert claim.conditions["stop_rule"] == f"acc >= 0.8 or {limit} samples"


def test_software_is_what_the_cited_readme_names() -> None:
    header, *lines = ([cell.strip() for cell in line.split("|")] for line in READMES.strip().splitlines())
    named = {(case, source): dict(zip(header[2:], cells, strict=True)) for case, source, *cells in lines}
    for claim in TRAINED.values():
        said = {**claim.conditions, **claim.environment}
        of_a100 = claim.case == "llama3-8b" and "H100" in claim.row  # the README's software is that of its A100
        for name, value in named[claim.case, version(claim)].items():
            value = "" if of_a100 else value
            assert said[name] == (value or NOT_PUBLISHED), (claim.id, name)


# AutoModel 507bfb75: llama3_1_8b_peft_benchmark.yaml and qwen2_5_7b_peft_benchmark.yaml of examples/llm_finetune, and
# what they leave to nemo_automodel/_transformers/auto_model.py and _peft/lora.py. None of them names the software.
AUTOMODEL = {
    "sequence_length": 4096,
    "batch_size": 2,
    "gradient_accumulation_steps": 32 // 2,
    "precision": "bf16",
    "recompute": False,
    "attention": "sdpa",  # flash_attention_2
    "transformer": "liger",
    "optimizer": "AdamW(betas=0.9/0.999, eps=1e-08, weight_decay=0.01)",
    "learning_rate": 1e-5,
    "weights": "pretrained",
    "stop_rule": "10 steps",
    **dict.fromkeys(("torch", "cuda", "driver"), NOT_PUBLISHED),
}


@pytest.mark.parametrize(
    ("row", "seed", "dropout"), [("llama3.1-8b-lora/h100-1x1", 42, "0.1"), ("qwen2.5-7b-lora/h100-1x1", 1111, "0")]
)
def test_conditions_of_automodel_are_those_of_its_recipes(row: str, seed: int, dropout: str) -> None:
    claim = CATALOG.claims[row]
    lora = f"r=16, alpha=32, dropout={dropout}, q+k+v+o+gate+up+down"
    expected = {**AUTOMODEL, "seed": seed, "lora": lora}
    assert {name: claim.conditions[name] for name in expected} == expected
    assert (claim.published_image, claim.precision.label, claim.run.gpus, claim.run.set) == (
        NOT_PUBLISHED,
        "bf16",
        1,
        {},
    )


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_run_of_a_claim_has_its_conditions(claim: Claim) -> None:
    assert contradicted(claim, CATALOG.cases[claim.case]) == {}


def test_conditions_that_no_run_of_a_row_has_are_named() -> None:
    claim = CLAIMS["distilbert/a100-1x8-fp32"]
    wrong = dict.fromkeys(("nodes", "devices", "precision", "stop_rule", "optimizer", "batch_size"), "adamw")
    changed = replace(claim, conditions={**claim.conditions, **wrong})
    assert contradicted(changed, CATALOG.cases[claim.case]).keys() == wrong.keys()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_an_anomaly_is_of_a_known_field(claim: Claim) -> None:
    known = {metric.name for metric in CATALOG.cases[claim.case].metrics} | set(claim.conditions)
    assert {anomaly.field for anomaly in claim.anomalies} <= known
    assert len({anomaly.id for anomaly in claim.anomalies}) == len(claim.anomalies)


def test_a_row_without_a_stack_is_of_an_unknown_device() -> None:
    devices = {device.name for stack in CATALOG.stacks.values() for device in stack.accelerators}
    for claim in CLAIMS.values():
        assert (claim.stack is None) == (claim.conditions["device_model"] not in devices), claim.id
