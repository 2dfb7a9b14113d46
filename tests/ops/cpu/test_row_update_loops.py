"""Updates of rows in compiled loops change parameters as loops over tables do, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import element_types
from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import kernel as loop_kernels
from mspc.ops.cpu.loops import library, program
from tests.ops.cuda.cuda_chains import NumPy
from tests.ops.cuda.row_update_cases import CASES, PLAIN, Tables, bits, plain

pytestmark = pytest.mark.skipif(not library.compiler(), reason="needs a C++ compiler")
HALVES = ("halves", "narrow gradients")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def by_rows(tables: Tables) -> Any:
    """The compiled kernel, None where there is none."""
    types = tables.types()
    found = program.kernels(NumPy(), {0: (tables.op, types, element_types(tables.op.infer(*types)))})
    assert not found.loops
    return found.updates.get(0)


def by_tables(tables: Tables) -> list[Any]:
    """The operands behind compiled sums and dense updates."""
    operands = [np.array(x) for x in tables.operands]
    calls: dict[int, program.Call] = {}
    members = list(zip(tables.op.members(operands), tables.op.members(tables.types()), strict=True))
    for number, (_, (op, own, summed)) in enumerate(members):
        own[tables.op.gradient] = made = op.infer(*summed)
        calls[2 * number] = op, summed, [made]
        calls[2 * number + 1] = tables.op.member, own, own[: len(tables.op.member.writes)]
    kernels = program.kernels(NumPy(), calls)
    for number, ((_, own, summed), _) in enumerate(members):
        own[tables.op.gradient] = kernels.loops[2 * number](*summed)
        kernels.updates[2 * number + 1](*own)
    return operands


@pytest.mark.parametrize("name", [name for name in CASES if name not in HALVES])
def test_parameters_are_those_of_dense_updates(name: str) -> None:
    tables = CASES[name]
    operands = [np.array(x) for x in tables.operands]
    made = by_rows(tables)(*operands)
    assert [id(x) for x in made] == [id(operands[i]) for i in tables.op.mutates]
    assert bits(operands) == bits(by_tables(tables))


@pytest.mark.parametrize("name", HALVES)
def test_sums_in_halves_are_numpys(name: str) -> None:
    assert by_rows(CASES[name]) is None


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    found: list[list[bytes]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        operands = [np.array(x) for x in CASES["wide rows"].operands]
        by_rows(CASES["wide rows"])(*operands)
        found.append(bits(operands))
    assert found[0] == found[1] == found[2]


def test_integers_that_name_no_row_are_refused_and_change_nothing() -> None:
    tables = Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(50, 40))
    operands = [np.array(x) for x in tables.operands]
    kernel = by_rows(tables)
    operands[2][3] = 50
    before = bits(operands)
    with pytest.raises(IndexError, match="outside of"):
        kernel(*operands)
    assert bits(operands) == before


def test_operands_may_lie_anywhere() -> None:
    tables = CASES["one table"]
    operands = [np.array(x) for x in tables.operands]
    operands[1], operands[2] = np.repeat(operands[1], 2, 0)[::2], np.repeat(operands[2], 2)[::2]
    by_rows(tables)(*operands)
    assert bits(operands) == bits(by_tables(tables))
