"""Which precision a matrix product had, told from its error, on emulated and on real products."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch

from flagbench_cases.engines import precision_switches
from flagbench_cases.shared import tf32_environment

pytestmark = pytest.mark.image


def to_tf32(values: numpy.ndarray) -> numpy.ndarray:
    """float32 rounded to 10 mantissa bits, to nearest and ties to even, by its bits."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    dropped = 13  # 23 mantissa bits, 10 kept
    odd = (bits >> dropped) & 1
    rounded = (bits + (1 << (dropped - 1)) - 1 + odd) >> dropped << dropped
    return rounded.astype(numpy.uint32).view(numpy.float32)


def truncated(values: numpy.ndarray) -> numpy.ndarray:
    """float32 with what lies below 10 mantissa bits cut off, as a tensor core reads it where nobody rounds first."""
    return (values.view(numpy.uint32) >> 13 << 13).astype(numpy.uint32).view(numpy.float32)


def to_bf16(values: numpy.ndarray) -> numpy.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()


def unchanged(values: numpy.ndarray) -> numpy.ndarray:
    return values


def relative_error(seed: int, rounding, size: int = 256) -> float:
    generator = numpy.random.RandomState(seed)
    a, b = (generator.standard_normal((size, size)).astype(numpy.float32) for _ in range(2))
    exact = a.astype(numpy.float64) @ b.astype(numpy.float64)
    product = rounding(a) @ rounding(b)  # float32 accumulation, as the hardware does it
    return float(numpy.linalg.norm(product - exact) / numpy.linalg.norm(exact))


@pytest.mark.parametrize(
    ("name", "rounding"), [("fp32", unchanged), ("tf32", to_tf32), ("tf32", truncated), ("bf16", to_bf16)]
)
@pytest.mark.parametrize("size", [64, 256])
def test_an_emulated_product_is_told_by_its_error(name: str, rounding, size: int) -> None:
    errors = [relative_error(seed, rounding, size) for seed in range(20)]
    assert [precision_switches.classify(error) for error in errors] == [name] * 20
    # Not by a hair: each error stays a factor of 1.5 away from every border.
    assert {precision_switches.classify(1.5 * max(errors)), precision_switches.classify(min(errors) / 1.5)} == {name}


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 0.5, 1.0, 1e9])
def test_a_product_that_is_no_rounding_is_wrong(error: float) -> None:
    assert precision_switches.classify(error) == "wrong"


@pytest.mark.parametrize(("asked", "executed"), [("fp32", "fp32"), ("bf16", "bf16"), ("tf32", "fp32")])
def test_executed_precision_on_a_processor(asked: str, executed: str) -> None:
    proof = precision_switches.measure_precision(torch.device("cpu"), asked)
    assert proof["requested"] == asked
    assert proof["executed"] == executed  # no processor has TF32: the record must say so, whatever was asked
    assert precision_switches.classify(proof["relative_error"]) == executed


def test_a_device_that_multiplies_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: real(a, b) * float("nan"))
    for asked in ("fp32", "bf16"):
        assert precision_switches.measure_precision(torch.device("cpu"), asked)["executed"] == "wrong"


CHILD = """
import torch
from flagbench_cases.engines import precision_switches
precision_switches.set_switches("tf32")
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
"""


def test_environment_and_code_agree_in_a_fresh_process() -> None:
    """On TF32; a run in fp32, with an inherited override, is in tests/engine/test_run_native.py."""
    env = dict(os.environ)
    tf32_environment.prepare_environment(env, "tf32")
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().strip() == "high True"


@pytest.mark.parametrize("asked", ["tf32", "fp32"])
def test_a_torch_older_than_1_12_has_another_switch(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the build in NVIDIA's image of April 2022 may be; there TF32 is on by default."""
    monkeypatch.delattr(torch, "set_float32_matmul_precision")
    matmul = SimpleNamespace(allow_tf32=asked != "tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", asked != "tf32")
    precision_switches.set_switches(asked)
    assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (asked == "tf32", asked == "tf32")
