"""Layouts: canonical form, slices, groups, meshes.

Stand-ins answer as a value would, and ranks of one kind are those that would answer the same.
"""

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mspc.ir.graph import Constant
from mspc.ir.layout import Layout, NamedLayout, axis_map, common_mesh, group_of, on_mesh
from mspc.ir.varying import Looks, RankField, Varying, VaryingConstant, ascending, constant_bytes


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


HERE, THERE = RankField(0, 0, "rank_list"), RankField(1, 0, "rank_list")


def held(looks: Looks, here: Any, there: Any = None) -> bool:
    values = {HERE: here, THERE: there, RankField(0, 0, "rank_list", ascending=True): here and tuple(sorted(here))}
    return looks.hold_for(lambda slot: values[slot])


def test_what_nobody_asks_may_differ() -> None:
    looks = Looks()
    group = Varying(HERE, (0, 1), looks)
    assert isinstance(group, tuple)
    assert not isinstance(group, list)
    looks.close()
    assert held(looks, (7, 8, 9))


@pytest.mark.parametrize(
    ("ask", "same", "other"),
    [
        (len, (4, 5), (4, 5, 6)),
        (bool, (4, 5), ()),
        (tuple, (0, 1), (0, 2)),
        (lambda group: group[0], (0, 1), (1, 0)),
        (lambda group: group == (0, 1), (0, 1), (4, 5)),
        (lambda group: (0, 1) == group, (0, 1), (4, 5)),
        (lambda group: group != (2, 3), (4, 5), (2, 3)),
        (lambda group: 1 in group, (0, 1), (0, 2)),
        (lambda group: f"{group}", (0, 1), (0, 2)),
        (lambda group: ascending(group) == (0, 1), (1, 0), (1, 2)),
        (lambda group: max(group), (0, 1), (0, 2)),
        (lambda group: tuple(group), (0, 1), (False, True)),
        (lambda group: operator.add(group, (2,)), (0, 1), (1, 0)),
        (lambda group: operator.add((2,), group), (0, 1), (1, 0)),
        (lambda group: group * 2, (0, 1), (1, 0)),
        (lambda group: group < (0, 2), (0, 1), (0, 0)),
        (lambda group: group.index(1), (0, 1), (1, 0)),
    ],
)
def test_a_question_holds_for_ranks_that_answer_the_same(ask: Any, same: Any, other: Any) -> None:
    looks = Looks()
    answer = ask(Varying(HERE, (0, 1), looks))
    assert answer == ask((0, 1))
    looks.close()
    assert held(looks, (0, 1))
    assert held(looks, same)
    assert not held(looks, other)


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n + 2, lambda n: 2 + n, lambda n: n - 2, lambda n: 2 - n, lambda n: n * 2, lambda n: 2 * n,
        lambda n: n / 2, lambda n: 2 / n, lambda n: n // 2, lambda n: 9 // n, lambda n: n % 2, lambda n: 9 % n,
        lambda n: divmod(n, 2), lambda n: divmod(9, n), lambda n: n**2, lambda n: 2**n, lambda n: n < 3,
        lambda n: n <= 3, lambda n: n > 3, lambda n: n >= 3, lambda n: 3 < n, lambda n: -n, lambda n: +n, abs, int,
        float, range, lambda n: n + n, lambda n: max(n, 8), lambda n: slice(n, None).indices(9), lambda n: bool(n),
        lambda n: np.arange(n).tolist(), lambda n: n.bit_length(),
    ],
)  # fmt: skip
def test_what_is_computed_with_a_number_holds_for_ranks_that_have_it(compute: Any) -> None:
    looks = Looks()
    found, wanted = compute(Varying(HERE, 7, looks)), compute(7)
    assert found == wanted
    assert type(found) is type(wanted)
    looks.close()
    assert looks.hold_for(lambda _: 7)
    assert not looks.hold_for(lambda _: 8)


def test_python_s_own_hooks_are_no_question() -> None:
    looks = Looks()
    assert not hasattr(Varying(HERE, (0, 1), looks), "__array__")
    looks.close()
    assert held(looks, (7, 8))


def test_nobody_asks_when_the_questions_are_closed() -> None:
    looks = Looks()
    group = Varying(HERE, (0, 1), looks)
    looks.close()
    with pytest.raises(AssertionError, match="after ranks were distinguished"):
        tuple(group)


def test_constants_are_compared_by_their_bytes() -> None:
    looks = Looks()
    one, two = Constant(np.array([1, 2])), Constant(np.array([1, 3]))
    stand_in = VaryingConstant(HERE, one, looks)
    assert stand_in.type == one.type
    assert stand_in.same_as(one)
    assert not stand_in.same_as(two)
    looks.close()
    assert held(looks, constant_bytes(one))
    assert not held(looks, constant_bytes(two))
