"""Ranks by rule: groups by strides, programs that are equal but for a rank's own numbers."""

from __future__ import annotations

import itertools
import math

import pytest

from mspc.commands.view.groups import members_of, strides_of_axes, strides_of_members
from mspc.commands.view.kinds import kinds_of, own_facts, ranges
from mspc.ir.layout import group_of

TEXT = """#attrs         :
ranks : 4
rank : {rank}

subgraph @net() {{
  %0 = StridedSlice(%para1_x) primitive_attrs: {{begin: ({begin}, 0), end: (8, 8), strides: (1, 1)}}
  %1 = Concat(%0, Tensor(shape=[], dtype=Float32, value={value}))
  %2 = AllReduce(%1) primitive_attrs: {{op: "sum", group: "2-{rank}", rank_list: ({rank}, 9)}}
  %3 = NeighborExchange({operands}) primitive_attrs: {{send_rank_ids: (0, 1), rank_list: (0, 1, 2, 3)}}
}}
"""


def text(rank: int, **others: object) -> tuple[int, str]:
    return rank, TEXT.format(**{"rank": rank, "begin": 0, "value": 1.0, "operands": "%0, %1"} | others)


@pytest.mark.parametrize("mesh", [(8,), (2, 4), (2, 3, 4), (2, 2, 2, 2)])
def test_groups_along_any_axes_of_a_mesh(mesh: tuple[int, ...]) -> None:
    for count in range(len(mesh) + 1):
        for axes in itertools.combinations(range(len(mesh)), count):
            strides = strides_of_axes(mesh, axes)
            for rank in range(math.prod(mesh)):
                members = group_of(mesh, axes, rank)
                assert members_of(strides, rank) == members
                found = strides_of_members(members)
                assert found is not None
                assert members_of(found, rank) == members


@pytest.mark.parametrize("members", [(0, 1, 3), (3, 2, 1), (0, 0), (0, 1, 4, 6), (0, 2, 3, 4)])
def test_groups_without_a_rule(members: tuple[int, ...]) -> None:
    assert strides_of_members(members) is None


def test_ranks_that_differ_in_groups_alone_are_of_one_kind() -> None:
    (kind,) = kinds_of(map(text, range(4)))
    assert (kind.first, kind.ranks, kind.differences()) == (0, [0, 1, 2, 3], {})


def test_numbers_of_a_ranks_own_are_told() -> None:
    (kind,) = kinds_of([text(0), text(1, begin=4, value=2.0), text(2, operands="%1, %0")])
    assert kind.ranks == [0, 1, 2]
    assert kind.differences() == {
        0: {0: "begin: (0, 0)", 1: "begin: (4, 0)", 2: "begin: (0, 0)"},
        1: {0: "value: 1.0", 1: "value: 2.0", 2: "value: 1.0"},
        3: {0: "operands: %0, %1", 1: "operands: %0, %1", 2: "operands: %1, %0"},
    }


def test_other_operators_are_another_program() -> None:
    other = (1, TEXT.format(rank=1, begin=0, value=1.0, operands="%0, %1").replace("Concat", "Stack"))
    kinds = kinds_of([text(0), other, text(2)])
    assert [kind.ranks for kind in kinds] == [[0, 2], [1]]
    assert own_facts(kinds)[0] == {"graph": 0, "ranks": [[0, 2, 2]], "count": 2, "own": {}}


def test_thousands_of_ranks_take_no_room() -> None:
    assert ranges(range(8192)) == [[0, 8191, 1]]
    assert ranges([*range(0, 16, 4), 20, 21]) == [[0, 12, 4], [20, 21, 1]]
    assert ranges([5]) == [[5, 5, 1]]
