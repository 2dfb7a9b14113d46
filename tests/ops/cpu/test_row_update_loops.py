"""Updates of rows in compiled loops change parameters as loops over tables do, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import element_types
from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import kernel as loop_kernels
from mspc.ops.cpu.loops import library, program
from tests.ops.cuda.cuda_chains import NumPy
from tests.ops.cuda.row_update_cases import CASES, Tables, bits

pytestmark = [
    pytest.mark.skipif(not library.compiler(), reason="needs a C++ compiler"),
    pytest.mark.usefixtures("quick_compiler"),
]
HALVES = ("halves", "narrow gradients")


def calls_of(tables: Tables) -> list[program.Call]:
    """The update of rows; then for every member the sum of its rows, and its dense update."""
    types = tables.types()
    calls: list[program.Call] = [(tables.op, types, element_types(tables.op.infer(*types)))]
    for op, own, summed in tables.op.members(types):
        own[tables.op.gradient] = made = op.infer(*summed)
        calls += (op, summed, [made]), (tables.op.member, own, own[: len(tables.op.member.writes)])
    return calls


@pytest.fixture(scope="module")
def kernels(quick_compiler: None) -> dict[str, list[Any]]:
    """The kernels of every case's calls, None for those that are not compiled; all are compiled together."""
    calls = [(name, call) for name, tables in CASES.items() for call in calls_of(tables)]
    found = program.kernels(NumPy(), {number: call for number, (_, call) in enumerate(calls)})
    made: dict[str, list[Any]] = {name: [] for name in CASES}
    for number, (name, (op, _, _)) in enumerate(calls):
        made[name].append((found.updates if op.has_side_effect else found.loops).get(number))
    return made


def by_tables(tables: Tables, kernels: list[Any]) -> list[Any]:
    """The operands behind compiled sums and dense updates."""
    operands = [np.array(x) for x in tables.operands]
    sums, updates = kernels[1::2], kernels[2::2]
    for (_, own, summed), add, update in zip(tables.op.members(operands), sums, updates, strict=True):
        own[tables.op.gradient] = add(*summed)
        update(*own)
    return operands


@pytest.mark.parametrize("name", [name for name in CASES if name not in HALVES])
def test_parameters_are_those_of_dense_updates(name: str, kernels: dict[str, list[Any]]) -> None:
    tables = CASES[name]
    operands = [np.array(x) for x in tables.operands]
    made = kernels[name][0](*operands)
    assert [id(x) for x in made] == [id(operands[i]) for i in tables.op.mutates]
    assert bits(operands) == bits(by_tables(tables, kernels[name]))


@pytest.mark.parametrize("name", HALVES)
def test_sums_in_halves_are_numpys(name: str, kernels: dict[str, list[Any]]) -> None:
    assert kernels[name][0] is None


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    found: list[list[bytes]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        operands = [np.array(x) for x in CASES["wide rows"].operands]
        types = CASES["wide rows"].types()
        call = CASES["wide rows"].op, types, element_types(CASES["wide rows"].op.infer(*types))
        program.kernels(NumPy(), {0: call}).updates[0](*operands)
        found.append(bits(operands))
    assert found[0] == found[1] == found[2]


def test_integers_that_name_no_row_are_refused_and_change_nothing(kernels: dict[str, list[Any]]) -> None:
    operands = [np.array(x) for x in CASES["one table"].operands]
    operands[2][3] = 50
    before = bits(operands)
    with pytest.raises(IndexError, match="outside of"):
        kernels["one table"][0](*operands)
    assert bits(operands) == before


def test_operands_may_lie_anywhere(kernels: dict[str, list[Any]]) -> None:
    tables = CASES["one table"]
    operands = [np.array(x) for x in tables.operands]
    operands[1], operands[2] = np.repeat(operands[1], 2, 0)[::2], np.repeat(operands[2], 2)[::2]
    kernels["one table"][0](*operands)
    assert bits(operands) == bits(by_tables(tables, kernels["one table"]))
