"""Ranks by rule: groups by strides, programs that are equal but for a rank's own numbers."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from pathlib import Path

import pytest

from mspc.commands.facts.equal_ranks import kinds_of
from mspc.commands.view.dump import kind_facts, own_numbers, ranges
from mspc.commands.view.graph_columns import members_of, strides_of_axes, strides_of_members
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import group_of
from mspc.runtime.program import Program

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


def program(folder: Path, texts: list[tuple[int, str]], kinds: dict[int, int]) -> Program:
    """A folder with these texts."""
    files = {rank: f"rank_{rank}.ir" for rank, _ in texts}
    digests = {files[rank]: hashlib.sha256(content.encode()).hexdigest() for rank, content in texts}
    for rank, content in texts:
        (folder / files[rank]).write_text(content)
    (folder / "program.json").write_text("{}")
    return Program(folder, "", 4, "auto_parallel", False, files, digests, kinds=kinds)


def test_ranks_are_of_the_kinds_that_the_program_says(tmp_path: Path) -> None:
    other = (1, text(1)[1].replace("Concat", "Stack"))
    (first, second), edited = kinds_of(program(tmp_path, [text(0), other], {0: 0, 1: 1, 2: 0, 3: 1}))
    assert (first.ranks, first.text, second.ranks, edited) == ([0, 2], text(0)[1], [1, 3], [])


def test_kinds_of_the_program_that_differ_in_numbers_alone_are_one(tmp_path: Path) -> None:
    (kind,), _ = kinds_of(program(tmp_path, [text(0), text(1, begin=4)], {0: 0, 1: 1, 2: 0, 3: 1}))
    assert kind.ranks == [0, 1, 2, 3]


def test_ranks_of_which_nothing_is_said_are_compared(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1, begin=4), text(2), text(3, begin=4)], {})
    (first, second), _ = kinds_of(here)
    assert (first.ranks, second.ranks) == ([0, 2], [1, 3])
    (kind,), _ = kinds_of(here, numbers_count=False)
    assert kind.ranks == [0, 1, 2, 3]


def test_an_edited_file_is_a_kind_of_its_own(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1), text(2)], {0: 0, 1: 0, 2: 0})
    (tmp_path / "rank_1.ir").write_text(text(1)[1].replace("Concat", "Stack"))
    os.utime(tmp_path / "rank_1.ir", (2**32, 2**32))
    (first, second), edited = kinds_of(here)
    assert (first.ranks, first.edited, second.ranks, second.edited) == ([0, 2], False, [1], True)
    assert edited == ["rank_1.ir"]


def test_a_file_of_another_compile_is_refused_however_old_it_is(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1)], {0: 0, 1: 0})
    (tmp_path / "rank_1.ir").write_text(text(1)[1].replace("ranks : 4", 'compile_id : "abc"\nranks : 4'))
    os.utime(tmp_path / "rank_1.ir", (0, 0))
    with pytest.raises(MspcError, match=r"holds dumps of different compiles: rank_1\.ir is of compile abc"):
        kinds_of(here)


def test_numbers_of_a_ranks_own_are_told(tmp_path: Path) -> None:
    texts = [text(0), text(1, begin=4, value=2.0), text(2, operands="%1, %0"), text(3)]
    here = program(tmp_path, texts, dict.fromkeys(range(4), 0))
    (kind,), _ = kinds_of(here)
    assert kind_facts(here, [kind]) == [{"graph": 0, "ranks": [[0, 3, 1]], "count": 4, "own": own_numbers(here, kind)}]
    assert own_numbers(here, kind) == {
        "net": {
            0: {0: "begin: (0, 0)", 1: "begin: (4, 0)", 2: "begin: (0, 0)", 3: "begin: (0, 0)"},
            1: {0: "value: 1.0", 1: "value: 2.0", 2: "value: 1.0", 3: "value: 1.0"},
            3: {0: "operands: %0, %1", 1: "operands: %0, %1", 2: "operands: %1, %0", 3: "operands: %0, %1"},
        },
    }


def test_numbers_in_a_graph_that_a_node_runs_are_told_there(tmp_path: Path) -> None:
    graph = 'subgraph @"for 1"() {{\n  %0 = LocalSlice() primitive_attrs: {{begin: ({}, 0)}}\n'
    texts = [(rank, body + graph.format(4 * rank)) for rank, body in (text(0), text(1))]
    here = program(tmp_path, texts, {0: 0, 1: 0})
    (kind,), _ = kinds_of(here)
    assert own_numbers(here, kind) == {"for 1": {0: {0: "begin: (0, 0)", 1: "begin: (4, 0)"}}}


def test_thousands_of_ranks_take_no_room() -> None:
    assert ranges(range(8192)) == [[0, 8191, 1]]
    assert ranges([*range(0, 16, 4), 20, 21]) == [[0, 12, 4], [20, 21, 1]]
    assert ranges([5]) == [[5, 5, 1]]
