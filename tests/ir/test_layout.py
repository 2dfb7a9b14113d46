"""Layouts: canonical form, slices, groups, meshes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mspc.ir.layout import Layout, NamedLayout, axis_map, common_mesh, group_of, on_mesh


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]], list[int]]:
    mesh = tuple(draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4)))
    axes = draw(st.permutations(range(len(mesh))))
    dims: list[list[int]] = [[] for _ in range(draw(st.integers(1, 3)))]
    partial: list[int] = []
    for axis in axes:
        place = draw(st.integers(-2, len(dims) - 1))
        if place >= 0:
            dims[place].append(axis)
        elif place == -1:
            partial.append(axis)
    return mesh, [tuple(d) for d in dims], partial


@given(layouts())
def test_canonical_form_places_the_same_slices(parts: tuple) -> None:
    mesh, dims, partial = parts
    raw = Layout(mesh, tuple(dims), tuple(sorted(partial)), "sum" if partial else "")
    layout = Layout.of(mesh, dims, partial)
    assert layout.ranks == raw.ranks
    assert all(layout.slice_index(r) == raw.slice_index(r) for r in range(raw.ranks))
    assert layout.strategy == raw.strategy
    assert layout.size_of(layout.partial) == raw.size_of(raw.partial)


@given(layouts())
def test_canonical_form_is_a_fixpoint_and_survives_refinement(parts: tuple) -> None:
    layout = Layout.of(*parts)
    assert Layout.of(layout.mesh, layout.dims, layout.partial) == layout
    fine = tuple(p for size in layout.mesh for p in _primes(size)) or (1,)
    dims, partial = on_mesh(layout, fine)
    assert Layout.of(fine, dims, partial) == layout


@given(layouts())
def test_slices_tile_the_tensor_once_per_replica(parts: tuple) -> None:
    layout = Layout.of(*parts)
    shape = tuple(cut * 2 for cut in layout.strategy)
    seen = np.zeros(shape, dtype=int)
    for rank in range(layout.ranks):
        seen[layout.slices_for(rank, shape)] += 1
    assert (seen == layout.ranks // math.prod(layout.strategy)).all()


def _primes(n: int) -> list[int]:
    return next(([p, *_primes(n // p)] for p in range(2, n + 1) if n % p == 0), [])


def test_strategy_puts_the_repeated_axis_last() -> None:
    assert str(Layout.from_strategy((2, 2), 8)) == "(2, 2, 2) [0, 1]"
    assert str(Layout.from_strategy((8, 1), 8)) == "(8) [0, -]"
    assert Layout.of((2, 4), [(0, 1), ()]) == Layout.of((8,), [(0,), ()])


def test_first_listed_axis_is_the_most_significant() -> None:
    x = NamedLayout((2, 2, 2), ("dp", "sp", "mp"), (0, (1, 2))).to_layout()
    columns = {rank: x.slice_index(rank)[1] for rank in range(8)}
    assert [rank for rank in (0, 4, 2, 6)] == sorted((r for r in columns if r % 2 == 0), key=columns.__getitem__)


def test_groups_follow_the_order_of_the_axes() -> None:
    assert group_of((2, 4), (1,), 5) == (4, 5, 6, 7)
    assert group_of((2, 2, 2), (2, 0), 2) == (2, 6, 3, 7)


@pytest.mark.parametrize(
    ("left", "right", "fine"),
    [((8,), (2, 4), (2, 4)), ((4, 2), (2, 4), (2, 2, 2)), ((3, 4), (4, 3), None), ((1,), (1,), (1,))],
)
def test_common_mesh(left: tuple, right: tuple, fine: tuple | None) -> None:
    assert common_mesh(left, right) == fine
    if fine:
        assert math.prod(len(a) for a in axis_map(left, fine)) >= 0
