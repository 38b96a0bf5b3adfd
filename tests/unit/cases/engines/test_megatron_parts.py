"""Which part of each tensor a rank of any layout holds. Megatron-Core itself is not needed for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flagbench_cases.engines.megatron.parts import Piece, fill, parts_of, random_tensors
from flagbench_cases.engines.megatron.shape import Shape, shape_of
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.llama.weights_format import PADDING
from flagbench_cases.shared.parallel_layout import Coordinates, Layout
from unit.cases.engines.megatron_bench import SMALL, weights_of

pytestmark = pytest.mark.image
SHAPE = shape_of(SMALL)
SHAPES = weights_format.shapes(SMALL)
LAYOUTS = [Layout(1, tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4)]
CPU = torch.device("cpu")


def ranks(layout: Layout) -> Iterator[Coordinates]:
    """The coordinates of all ranks."""
    return (layout.coordinates(rank) for rank in range(layout.world))


def size(pieces: list[Piece]) -> tuple[int, ...]:
    """The shape of the parameter that these pieces are."""
    shapes = [tuple(piece.slice_of(torch.empty(SHAPES[piece.name])).shape) for piece in pieces]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


class Stub:
    """Parameters of a rank, with what they held before: NaN."""

    def __init__(self, layout: Layout, at: Coordinates, shape: Shape = SHAPE) -> None:
        self.parts = parts_of(shape, layout, at)
        self.parameters = {name: torch.full(size(pieces), torch.nan) for name, pieces in self.parts.items()}
        rows = shape.padded_vocabulary(layout.tp) // layout.tp
        for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            if name in self.parameters:
                self.parameters[name] = torch.full((rows, shape.dim), torch.nan)

    def named_parameters(self) -> Any:
        return self.parameters.items()


def from_tensors(tensors: dict[str, torch.Tensor]) -> Any:
    """A `read` for `fill`."""
    return lambda names: ((name, tensors[name]) for name in names)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_element_is_held_once(layout: Layout) -> None:
    held = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for at in ranks(layout):
        for pieces in parts_of(SHAPE, layout, at).values():
            for piece in pieces:
                piece.slice_of(held[piece.name]).add_(1)
    for name, count in held.items():
        assert (count == (layout.tp if count.dim() == 1 else 1)).all(), name


def output_rows(layout: Layout, padding: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output layer of all tensor-parallel ranks, one after another, filled."""
    found = []
    for at in ranks(layout):
        module = Stub(layout, at)
        fill(module, parts_of(SHAPE, layout, at, padding), from_tensors(tensors))  # type: ignore[arg-type]
        assert not any(parameter.isnan().any() for parameter in module.parameters.values())
        found.append(module.parameters["output_layer.weight"])
    return torch.cat(found)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_rows_that_pad_the_vocabulary_are_what_is_asked_for(tp: int) -> None:
    """On eight ranks of 16 rows the whole of the last one is padding, and some of the one before it."""
    layout, weights = Layout(1, tp, 1), weights_of(SMALL)
    rows, last = SHAPE.padded_vocabulary(tp), weights["lm_head.weight"][-1]
    theirs = torch.randn(rows - 99, 64)
    for padding, wanted in (
        ("zeros", torch.zeros(rows - 99, 64)),
        ("last_row", last.expand(rows - 99, 64)),
        ("checkpoint", theirs),
    ):
        found = output_rows(layout, padding, {**weights, PADDING: theirs})
        assert torch.equal(found[:99], weights["lm_head.weight"]), padding
        assert torch.equal(found[99:], wanted), padding


def drawn(layout: Layout, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors put together again from the parameters of all ranks."""
    whole = {name: torch.full(shape, torch.nan) for name, shape in SHAPES.items()}
    for at in ranks(layout):
        module, beats = Stub(layout, at), []
        read = random_tensors(SHAPE, SHAPES, seed, CPU, lambda beats=beats: beats.append(1))
        fill(module, module.parts, read)  # type: ignore[arg-type]
        assert beats  # a rank that fills for minutes is not taken for one that hangs
        for name, pieces in module.parts.items():
            row = 0
            for piece in pieces:
                target = piece.slice_of(whole[piece.name])
                target.copy_(module.parameters[name][row : row + target.shape[0]])
                row += target.shape[0]
    return whole


def test_random_weights_are_the_same_at_any_layout() -> None:
    expected = drawn(Layout(), 3)
    for name, tensor in expected.items():
        if tensor.dim() == 1:
            assert (tensor == SMALL["norm_init"]).all(), name
        else:
            assert tensor.std() == pytest.approx(SMALL["initializer_range"], rel=0.05), name
            assert abs(float(tensor.mean())) < 0.01, name
    for layout in LAYOUTS[1:]:
        found = drawn(layout, 3)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), layout


def test_matrices_of_the_residual_stream_can_start_smaller() -> None:
    names = list(SHAPES)
    plain = dict(random_tensors(SHAPE, SHAPES, 3, CPU, lambda: None)(names))
    scaled = dict(random_tensors(SHAPE, SHAPES, 3, CPU, lambda: None, scaled=True)(names))
    smaller = {name for name in names if not torch.equal(plain[name], scaled[name])}
    layers = ("model.layers.%d." % layer for layer in range(SHAPE.layers))
    assert smaller == {
        layer + matrix for layer in layers for matrix in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    }
    for name in smaller:
        torch.testing.assert_close(scaled[name], plain[name] / (2 * SHAPE.layers) ** 0.5)
