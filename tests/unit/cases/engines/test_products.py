"""Products and the operations of the roofs case on a processor: what they compute, and what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flagbench_cases.cases.roofs import workload
from flagbench_cases.contract import Context, Measurement
from flagbench_cases.engines.products import fixed_results, mamf_product, product
from flagbench_cases.shared import system
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_core.config import Options, resolve
from workloads import set_up

pytestmark = pytest.mark.image
CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_has_its_shape_and_type(precision: str, transposed: bool) -> None:
    found = product(CPU, precision, 4, 6, 8, transposed)()
    assert found.shape == (4, 6)
    assert found.dtype == {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert float(found.double().abs().sum()) > 0


def test_a_product_of_mamf_follows_a_cleared_cache() -> None:
    one = mamf_product(CPU, "bf16", 4, 6, 8, 64)
    out = one.run()
    exact = out.clone()
    one.clear()
    assert not torch.equal(out, exact)
    assert torch.equal(one(), exact)


def test_a_processor_has_no_fp8() -> None:
    with pytest.raises(RuntimeError):
        product(CPU, "fp8", 16, 16, 16)


def test_fixed_operations_give_the_same_bits() -> None:
    first = fixed_results(CPU, ["fp64", "fp32", "bf16", "fp8"], 64)
    assert set(first) == {"matmul_fp64", "matmul_fp32", "matmul_bf16", "sum"}
    torch.rand(1)  # the seed is their own
    assert fixed_results(CPU, ["fp64", "fp32", "bf16", "fp8"], 64) == first
    assert not torch.are_deterministic_algorithms_enabled()


def measurements(folder: Path) -> dict[str, Measurement]:
    options = Options(source="synthetic", settings=("m=4096", "n=64", "copy_bytes=4000"))
    config = resolve(load_case("roofs"), load_stack("cpu"), options)
    return {each.name: each for each in set_up(workload.build, config, folder).measurements()}


def test_what_is_measured_at_the_published_size(tmp_path: Path) -> None:
    found = measurements(tmp_path)
    assert len(found) == 2 * 6 + 2 + 1 + 3 + 5
    assert found["mamf_bf16"].candidates[0].measured["cleared_bytes"] == 2**24
    own = found["matmul_fp32"].candidates[0]
    assert own.measured["shape"] == [4096, 64, 8192]
    assert len(found["matmul_bf16_best"].candidates) == 25
    assert all(each.trial is not None for each in found["matmul_bf16_best"].candidates[2:9])
    copy = found["memory_bandwidth"].candidates[0]
    assert copy.measured == {"operation": "copy", "bytes": 4000}
    assert copy.prepare()().numel() == 1000
    for name in ("h2d_pinned", "h2d_pageable", "all_reduce", "matmul_tf32"):
        with pytest.raises(RuntimeError):
            found[name].candidates[0].prepare()


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_where_a_container_has_little_memory_sizes_are_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("16000\n")
    monkeypatch.setattr(system, "cgroup_folders", lambda controller: [str(tmp_path), str(tmp_path / "root")])
    assert measurements(tmp_path)["memory_bandwidth"].candidates[0].measured["bytes"] == 2000


def test_an_all_reduce_is_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []
    reduced: list[torch.Tensor] = []

    def all_reduce(values: torch.Tensor, **options: Any) -> None:
        called.append(options)
        reduced.append(values)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(Context, "world", 2)
    start = measurements(tmp_path)["all_reduce_65536"].candidates[0].prepare()
    start()
    start()
    assert called == [{"op": dist.ReduceOp.MIN}, {}, {}]  # the sizes that all ranks can hold, then the sums
    # In place, as in FlagPerf's base/benchmarks/interconnect-MPI_intraserver/main.py:68.
    assert reduced[1] is reduced[2]
    assert (reduced[1].numel(), reduced[1].dtype) == (65536 // 4, torch.float32)


def test_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        workload.RoofsWorkload(type("Given", (), {"data": str(tmp_path), "weights": None})())
