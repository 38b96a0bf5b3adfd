"""Llama-3 8B as it was published: learned positions, biases, a tied output layer and dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.engines.megatron import parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from running import need_megatron
from unit.cases.engines.megatron_bench import transformers_model
from unit.cases.llama2_70b.llama70_bench import trained, workload
from workloads import on_ranks

pytestmark = pytest.mark.image

CASE = "llama3-8b"
LAYOUTS = {"tp2": Layout(1, 2, 1), "pp2": Layout(1, 1, 2), "dp2": Layout(2, 1, 1)}


def run(folder: Path, rank: int, layout: Layout, dropout: float = 0.0, **train: Any) -> list[float]:
    """The losses of a rank's steps."""
    folder.mkdir(exist_ok=True)
    found = trained(folder, rank, layout, case=CASE, model={"dropout": dropout}, train=train)
    return [Step(*step).loss for step in found["steps"]]


def test_the_published_size() -> None:
    assert shape_of(load_case(CASE)["presets"]["reference"]["model"]).parameters == 7_539_855_360


def test_losses_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    """Without dropout. A replica of two has half of the micro-batches."""
    need_megatron()

    def alone(folder: Path, rank: int, world: int) -> dict[str, list[float]]:
        return {
            "whole": run(folder / "whole", rank, Layout()),
            "dropout": run(folder / "dropout", rank, Layout(), 0.1),
        }

    def split(folder: Path, rank: int, world: int) -> dict[str, list[float]]:
        of = {"dp2": {"batch_size": 4}}
        return {name: run(folder / name, rank, layout, **of.get(name, {})) for name, layout in LAYOUTS.items()}

    (one,) = on_ranks(1, tmp_path / "one", alone)
    first, second = on_ranks(2, tmp_path / "two", split)
    means = [sum(pair) / 2 for pair in zip(first["dp2"], second["dp2"])]
    for losses in (first["tp2"], second["tp2"], second["pp2"], means):
        assert losses == pytest.approx(one["whole"], abs=1e-5)
    assert one["dropout"] != pytest.approx(one["whole"], abs=1e-3)


def test_rope_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """The stage of llama3-8b-rope as its workload makes it, with its initial weights."""
    need_megatron()
    pytest.importorskip("transformers")

    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, Layout(), case="llama3-8b-rope")
        section, tokens = work.config["model"], work.set.blocks[0][None, :-1]
        shapes = weights_format.shapes(section)
        drawn = parts.random_tensors(work.shape, shapes, 1234, work.device, lambda: None, scaled=True)
        with torch.no_grad():
            theirs = transformers_model(section, dict(drawn(sorted(shapes))))(tokens).logits
            return work.module(tokens, torch.arange(tokens.shape[1])[None], None), theirs

    ((ours, theirs),) = on_ranks(1, tmp_path, body)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert theirs.std() > 0.1


@pytest.mark.parametrize(("case", "wide"), [(CASE, True), ("llama3-8b-rope", True), ("llama2-70b", False)])
def test_a_softmax_of_its_own_is_in_fp32_as_the_script_says(tmp_path: Path, case: str, wide: bool) -> None:
    """pretrain_llama3.sh:42 passes --attention-softmax-in-fp32; llama2_70B's megatron_main.sh does not."""
    need_megatron()

    def body(folder: Path, rank: int, world: int) -> list[bool]:
        work = workload(folder, rank, Layout(), case=case, precision="bf16", train={"flash_attention": False})
        layers = work.module.decoder.layers
        return [layer.self_attention.core_attention.scale_mask_softmax.softmax_in_fp32 for layer in layers]

    assert set(on_ranks(1, tmp_path, body)[0]) == {wide}


def test_fp8_needs_transformer_engine(tmp_path: Path) -> None:
    need_megatron()

    def body(folder: Path, rank: int, world: int) -> str:
        with pytest.raises(UsageError) as refused:
            workload(folder, rank, Layout(), case=CASE, precision="fp8")
        return str(refused.value)

    assert "fp8" in on_ranks(1, tmp_path, body)[0]
