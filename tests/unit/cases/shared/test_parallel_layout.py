"""Where each rank of a layout stands, and which ranks belong together."""

from __future__ import annotations

import itertools

import pytest

from flagbench_cases.shared.parallel_layout import AXES, Layout, layout_of

LAYOUTS = [Layout(*sizes) for sizes in itertools.product((1, 2), repeat=3)]
pytestmark = pytest.mark.image


def test_ranks_are_numbered_as_megatron_numbers_them() -> None:
    layout = Layout(dp=2, tp=2, pp=2)
    assert [tuple(layout.coordinates(rank)) for rank in range(8)] == [
        (0, 0, 0),
        (0, 1, 0),
        (1, 0, 0),
        (1, 1, 0),
        (0, 0, 1),
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 1),
    ]
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_one_rank_of_each_replica_counts_and_one_has_its_loss(layout: Layout) -> None:
    at = [layout.coordinates(rank) for rank in range(layout.world)]
    assert len(set(at)) == layout.world
    for chosen in (layout.counts, layout.has_loss):
        assert [at[rank].dp for rank in range(layout.world) if chosen(rank)] == list(range(layout.dp))
    assert all(at[rank].pp == layout.pp - 1 for rank in range(layout.world) if layout.has_loss(rank))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("axis", AXES)
def test_groups_along_an_axis_hold_every_rank_once(layout: Layout, axis: str) -> None:
    groups = layout.groups(axis)
    assert sorted(itertools.chain(*groups)) == list(range(layout.world))
    assert {len(group) for group in groups} == {getattr(layout, axis)}
    for group in groups:
        assert [getattr(layout.coordinates(rank), axis) for rank in group] == list(range(len(group)))


def test_replicas_are_as_many_as_fit() -> None:
    assert layout_of({"nodes": 2, "gpus": 8, "layout": {"tp": 4, "pp": 2}}) == Layout(dp=2, tp=4, pp=2)
    assert layout_of({"nodes": 2, "gpus": 8}) == Layout(dp=16)
