"""`flagbench plan`: which layouts there are, what grows and shrinks with them, and the published rows."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.manifests.rows import Claim
from flagbench.plan.layouts import ConfiguredCase, configure_case, list_layouts, rank_layouts
from flagbench.plan.memory import StageMemory, forward_memory, fullest_stage, stage_memory
from flagbench.plan.model import CPU, GPU, MemoryTraits, Model, ParallelLayout, Step, memory_traits_of
from flagbench.plan.page import PREDICTION_ERROR
from flagbench.runs.request import RunOptions

from .conftest import ROOT


def configured(case: str, *settings: str, **options: Any) -> ConfiguredCase:
    """A case with settings, on a stack with accelerators."""
    return configure_case(CATALOG.cases[case], CATALOG.stacks["cuda13"], RunOptions(set_=settings, **options))


LLAMA = configured("llama2-70b")
LLAMA3 = configured("llama3-8b")
AQUILA = configured("aquila-33b")
GIB = 2**30


def accepted(plan: ConfiguredCase, devices: int, per_node: int) -> list[ParallelLayout]:
    """The layouts that the image side accepts."""
    from flagbench_cases.shared import manifests
    from flagbench_core import config

    case, found = manifests.load_case(plan.case.name), []
    for tp, pp in itertools.product(range(1, per_node + 1), range(1, devices + 1)):
        fixed = tuple(f"{name}={size}" for name, size in (("tp", tp), ("pp", pp)) if name in case["settable"])
        if len(fixed) < 2 and pp > 1:
            continue
        try:
            options = config.Options(nodes=devices // per_node, gpus=per_node, settings=fixed)
            config.resolve(case, manifests.load_stack("cuda13"), options)
        except config.ConfigError:
            continue
        if per_node % tp == 0:
            found.append(ParallelLayout(tp, pp, devices // (tp * pp)))
    return found


# Which layouts


@pytest.mark.parametrize(
    ("plan", "devices", "per_node"), [(LLAMA, 32, 8), (LLAMA, 80, 8), (LLAMA, 12, 6), (AQUILA, 16, 8), (AQUILA, 3, 3)]
)
def test_layouts_are_those_that_the_image_accepts_inside_nodes(
    plan: ConfiguredCase, devices: int, per_node: int
) -> None:
    found = list_layouts(plan, devices, per_node)
    assert sorted(found) == sorted(accepted(plan, devices, per_node))
    assert all(layout.ranks == devices and per_node % layout.tp == 0 for layout in found)


def test_a_fixed_axis_stays() -> None:
    plan = configured("llama2-70b", "tp=4", "recompute=none")
    assert {layout.tp for layout in list_layouts(plan, 32, 8)} == {4}
    assert plan.recomputes == ("none",)
    assert LLAMA.recomputes == ("none", "full"), "selective repeats nothing with attention in one kernel"
    unfused = configured("llama2-70b", "flash_attention=false")
    assert unfused.recomputes == ("none", "selective", "full")
    fused = configured("llama2-70b", "recompute=selective")
    assert fused.recomputes == ("none",)
    with pytest.raises(FlagbenchError) as refused:
        list_layouts(configured("llama2-70b", "tp=3"), 24, 6)
    assert "model.heads = 64" in refused.value.remedy


# What grows and shrinks

MODELS = st.builds(
    lambda layers, heads, groups, width, ffn, vocabulary: Model(
        layers * 8, 8 * groups * heads * width, 8 * groups * heads, 8 * groups, 64 * ffn, vocabulary, 16
    ),
    *(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.sampled_from([16, 64, 128])),
    st.integers(1, 64),
    st.integers(64, 64000),
)
STEPS = st.builds(
    Step,
    st.sampled_from([64, 256, 4096]),
    st.integers(1, 4),
    st.integers(1, 64),
    st.sampled_from(["bf16", "fp16", "fp32", "tf32"]),
    fused_attention=st.booleans(),
    distributed_optimizer=st.booleans(),
)
SOFTWARE = st.sampled_from([GPU, CPU, MemoryTraits(fused_norm=False)])


def tensors(model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits) -> int:
    return max(stage_memory(model, step, layout, stage, traits).tensors for stage in range(layout.pp))


@settings(max_examples=60, deadline=None)
@given(MODELS, STEPS, SOFTWARE)
def test_splitting_needs_less(model: Model, step: Step, traits: MemoryTraits) -> None:
    for pp in (1, 2):
        by_tp = [stage_memory(model, step, ParallelLayout(tp, pp, 1), 0, traits) for tp in (1, 2, 4, 8)]
        for name in ("weights", "gradients", "optimizer", "activations"):
            sizes = [getattr(told, name) for told in by_tp]
            # Padding of the vocabulary, and norms, are on every rank.
            slack = 12 * 16 * 8 * model.dim
            assert all(later <= earlier + slack for earlier, later in itertools.pairwise(sizes)), name
    by_pp = [stage_memory(model, step, ParallelLayout(2, pp, 1), 0, traits) for pp in (1, 2, 4, 8)]
    for name in ("weights", "gradients", "optimizer"):
        sizes = [getattr(told, name) for told in by_pp]
        assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    MODELS,
    STEPS,
    SOFTWARE,
    st.sampled_from([ParallelLayout(1, 1, 1), ParallelLayout(4, 2, 1), ParallelLayout(2, 8, 2)]),
)
def test_recomputing_more_needs_less(model: Model, step: Step, traits: MemoryTraits, layout: ParallelLayout) -> None:
    saved = [
        stage_memory(model, dataclasses.replace(step, recompute=recompute), layout, 0, traits).activations
        for recompute in ("none", "selective", "full")
    ]
    assert saved == sorted(saved, reverse=True)
    some = dataclasses.replace(step, recompute="full", recomputed_layers=model.layers // layout.pp // 2)
    assert saved[2] <= stage_memory(model, some, layout, 0, traits).activations <= saved[0]


@settings(max_examples=60, deadline=None)
@given(MODELS, STEPS, SOFTWARE)
def test_more_at_a_time_needs_more(model: Model, step: Step, traits: MemoryTraits) -> None:
    layout = ParallelLayout(2, 4, 1)
    for field in ("sequence_length", "micro_batch", "micro_batches"):
        larger = dataclasses.replace(step, **{field: 2 * getattr(step, field)})
        assert tensors(model, larger, layout, traits) >= tensors(model, step, layout, traits)
    first = stage_memory(model, step, layout, 0, traits)
    if step.micro_batches > 3:
        assert first.activations >= stage_memory(model, step, layout, 1, traits).activations
    assert first.in_use >= first.tensors + first.context


def test_a_distributed_optimizer_shares_its_states() -> None:
    model, step = LLAMA.model, LLAMA.step("full")
    alone, two = (stage_memory(model, step, ParallelLayout(8, 4, dp), 0) for dp in (1, 2))
    assert two.optimizer * 2 == alone.optimizer
    whole = dataclasses.replace(step, distributed_optimizer=False)
    assert stage_memory(model, whole, ParallelLayout(8, 4, 2), 0).optimizer == pytest.approx(
        alone.optimizer, rel=1e-6
    )
    # bf16: fp32 weights and two moments; fp32: two moments.
    single = dataclasses.replace(step, precision="fp32")
    assert alone.optimizer * 2 == stage_memory(model, single, ParallelLayout(8, 4, 1), 0).optimizer * 3
    parameters = sum(model.parameters(ParallelLayout(8, 4, 1), 0))
    assert alone.weights + alone.gradients + alone.optimizer == pytest.approx(18 * parameters, rel=1e-6)


def test_all_ranks_together_have_the_model() -> None:
    model = LLAMA.model
    for layout in list_layouts(LLAMA, 32, 8):
        held = sum(sum(model.parameters(layout, stage)) for stage in range(layout.pp)) * layout.tp
        padding = 2 * (model.padded_vocabulary(layout.tp) - model.vocab_size) * model.dim
        norms = (2 * model.layers + 1) * model.dim * (layout.tp - 1)  # every rank has them
        assert held - padding - norms == 68_976_648_192


# Published rows

C500_RECOMPUTED = 6
"""Layers of each stage that were recomputed when the rows of the C500 were published: quirk `recompute-replaced`."""


def predicted(claim: Claim) -> StageMemory:
    values = {name: str(value).lower() for name, value in claim.run.set.items()}
    settings = [f"{name}={value}" for name, value in values.items()]
    plan = configured(claim.case, *settings, preset=claim.run.preset, precision=claim.run.precision)
    ranks = claim.run.nodes * claim.run.gpus
    if not plan.is_training:
        return forward_memory(plan.model, plan.step("none"), ParallelLayout(ranks, 1, 1))
    tp, pp = int(values["tp"]), int(values["pp"])
    layout = ParallelLayout(tp, pp, ranks // (tp * pp))
    step = plan.step(values.get("recompute", "none"))
    if claim.conditions["recompute"] == "not published" and claim.case == LLAMA.case.name:
        step = dataclasses.replace(step, recomputed_layers=C500_RECOMPUTED)
    return fullest_stage(plan.model, step, layout)


PUBLISHED = {
    (77, 71.3, 0.927): "Llama2-70B, H800, TP8 PP4, labelled fp32",
    (62, 61.4, 0.990): "Llama2-70B, H800, TP8 PP4, bf16",
    (74, 76.6, 1.035): "Llama2-70B, H800, TP4 PP8, bf16, 44 micro-batches",
    (74, 76.7, 1.036): "Llama2-70B, H800, TP4 PP8, bf16, 1024 micro-batches",
    (62, 59.9, 0.966): "Llama2-70B, C500, TP4 PP8, bf16, 44 micro-batches",
    (62, 60.0, 0.967): "Llama2-70B, C500, TP4 PP8, bf16, 1024 micro-batches",
    (12.3, 11.3, 0.916): "Aquila-33B, A100, TP8, bf16",
    (76, 74.3, 0.978): "Llama-3 8B, A100, TP1 PP2 DP4, bf16",
    (59, 66.8, 1.133): "Llama-3 8B, A100, TP1 PP4 DP2, bf16",
    (51, 45.3, 0.889): "Llama-3 8B, A100, TP2 PP2 DP2, bf16",
    (35, 30.5, 0.872): "Llama-3 8B, A100, TP4 PP2 DP1, bf16",
    (55, 65.9, 1.199): "Llama-3 8B, A100, TP1 PP8 DP1, bf16",
    (30, 24.7, 0.823): "Llama-3 8B, A100, TP8 PP1 DP1, bf16",
    (45, 42.3, 0.940): "Llama-3 8B, A100, TP2 PP4 DP1, bf16",
    (71, 56.3, 0.793): "Llama-3 8B, H100, TP2 PP1 DP4, bf16",
    (62, 50.9, 0.820): "Llama-3 8B, H100, TP2 PP1 DP8, bf16",
    (51.6, 45.3, 0.879): "Llama-3 8B, C500, TP2 PP2 DP2, bf16",
}
"""Published and predicted GiB and their ratio, by row."""


def test_published_memory_is_predicted() -> None:
    made = set()
    within = {LLAMA.case.name: 0.1, AQUILA.case.name: 0.1, LLAMA3.case.name: 0.21}  # docs/plan.md says why
    for claim in CATALOG.claims.values():
        if claim.case in within and claim.stack and claim.precision.executed != "fp8":
            published = claim.metric("mem_peak")
            assert published is not None
            needed = predicted(claim).in_use / GIB
            assert needed / published.value == pytest.approx(1, abs=within[claim.case])
            made.add((published.value, round(needed, 1), round(needed / published.value, 3)))
    assert made == PUBLISHED.keys()


def test_the_page_shows_how_far_predictions_are_off() -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    shares: dict[str, list[float]] = {}
    for (_, _, share), row in PUBLISHED.items():
        shares.setdefault(", ".join(row.split(", ")[:2]), []).append(share)
    for rows_of, found in shares.items():
        spread = f"{min(found):.3f}"
        if len(found) > 1:
            spread += f" to {max(found):.3f}"
        assert f"| {rows_of} | {len(found)} | {spread} |" in page
    errors = [abs(share - 1) for _, _, share in PUBLISHED]
    count = f"{sum(error > 0.1 for error in errors)} of {len(errors)}"
    most = f"{100 * max(errors):.0f} %"
    sentence = f"The prediction is off by more than 10 % for {count} published rows, by {most} at most."
    assert sentence == PREDICTION_ERROR
    assert PREDICTION_ERROR in " ".join(page.split())


def test_the_layout_that_ran_out_of_memory_needs_too_much() -> None:
    """Of the eight that were published on A100 of 80 GB: PP1 DP8 TP1, and no other."""
    found = {}
    for layout in list_layouts(LLAMA3, 8, 8):
        step = dataclasses.replace(LLAMA3.step("none"), micro_batches=512 // layout.dp)
        found[layout] = fullest_stage(LLAMA3.model, step, layout).in_use / GIB
    assert [layout for layout, needed in found.items() if needed > 80] == [ParallelLayout(1, 1, 8)]
    assert sum(LLAMA3.model.parameters(ParallelLayout(1, 1, 1), 0)) == 7_539_855_360


# Order


def test_layouts_that_fit_are_first() -> None:
    found = rank_layouts(LLAMA, 32, 8, 64, GPU)
    well, tight = ([row for row in found if row.fits and row.is_tight is tight] for tight in (False, True))
    assert well
    assert tight
    assert found[: len(well) + len(tight)] == well + tight
    assert len(well) + len(tight) < len(found)
    for group in (well, tight):
        sizes = [(row.layout.pp, row.layout.tp) for row in group]
        assert sizes == sorted(sizes)
    for row in found:
        assert row.fits == (row.memory.in_use <= 64 * GIB)
        assert row.is_tight == (0.9 * 64 * GIB < row.memory.in_use <= 64 * GIB)
        assert row.global_batch == 44 * row.layout.dp


def test_the_least_recomputation_that_fits_is_chosen() -> None:
    assert rank_layouts(LLAMA, 32, 8, 1e6, GPU)[0].recompute == "none"
    recomputed = [row.recompute for row in rank_layouts(LLAMA, 32, 8, 80, GPU) if row.fits and not row.is_tight]
    assert {*recomputed} == {"none", "full"}
    assert recomputed == sorted(recomputed, reverse=True)


def test_the_memory_traits_of_a_stack() -> None:
    told: dict[str, Any] = {name: memory_traits_of(stack) for name, stack in CATALOG.stacks.items()}
    assert told["cpu"] == CPU
    assert told["c500-maca3"] == told["cuda13"] == GPU
    assert told["a100-cuda11.8"] == MemoryTraits(fused_norm=False)


def test_the_memory_of_an_h100_is_predicted() -> None:
    """A slice of Llama-3 8B, whose record is in docs/measured."""
    raw = json.loads((ROOT / "docs" / "measured" / "h100-llama3-8b-8-layers.json").read_text(encoding="utf-8"))
    step = configured("llama3-8b", "batch_size=4").step("none")
    needed = fullest_stage(Model.of(raw["config"]["model"]), step, ParallelLayout(1, 1, 1)).in_use / GIB
    (measured,) = (metric["value"] for metric in raw["metrics"] if metric["name"] == "mem_peak")
    assert needed == pytest.approx(measured, rel=0.03)
