"""Updates of rows in kernels change parameters as updates of tables do, to the bit, and touch no other rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import dtype_of
from mspc.ops.device import Copy
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, QUICKLY, Emulator, compiled_by_nvcc, placed
from tests.ops.cuda.row_update_cases import CASES, PLAIN, Tables, bits, plain

pytestmark = pytest.mark.skipif(NEEDED is None, reason="needs g++")


def launched(device: Emulator, tables: Tables, copies: Any = None) -> tuple[list[Any], Any]:
    """(operands, launch)."""
    operands = [placed(x) for x in tables.operands]
    out = tuple(operands[i] for i in tables.op.mutates)
    return operands, tables.op.launch(device, out, *operands, copies=copies)


def dense(device: Emulator, tables: Tables) -> tuple[list[Any], list[Any]]:
    """(copies of the operands and behind them the sums, launches of the dense update for them, from sums in memory)."""
    operands = [placed(x) for x in tables.operands]
    launches: list[Any] = []
    sums: list[Any] = []
    for op, own, (rows, ids) in tables.op.members(operands):
        made = placed(np.zeros((len(own[0]), *rows.shape[1:]), rows.dtype))
        own[tables.op.gradient] = made
        sums.append(made)
        launches += op.launch(device, made, rows, ids), tables.op.member.launch(device, own[0], *own)
    assert None not in launches
    return [*operands, *sums], launches  # a launch knows addresses alone


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """(operands, launch, operands, launches of the dense update) of every case; all kernels are compiled together."""
    device = Emulator(tmp_path_factory.mktemp("kernels"))
    return {name: (*launched(device, tables), *dense(device, tables)) for name, tables in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_dense_updates(name: str, prepared: dict[str, Any]) -> None:
    operands, launch, wanted, launches = prepared[name]
    for each in (launch, *launches):
        each()
    assert bits(operands) == bits(wanted[: len(operands)])


def test_nothing_is_updated_after_a_stop(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    device.stop[0] = 1
    tables = CASES["many sizes"]
    operands, launch = launched(device, tables)
    launch()
    assert bits(operands) == bits(tables.operands)


def test_copies_in_halves_stay_up_to_date(tmp_path: Path) -> None:
    """One lies as the table does, one in a wider matrix, one table has none."""
    device = Emulator(tmp_path)
    tables = Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(50, 70, 20))
    half = dtype_of("BFloat16").numpy
    whole, wide = placed(tables.operands[0].astype(half)), placed(np.zeros((70, 20), half))
    wide[:, 4:16] = tables.operands[4].astype(half)
    copies = {0: Copy(whole, 600, 600), 4: Copy(wide.reshape(-1)[4:], 12, 20)}
    operands, launch = launched(device, tables, copies)
    wanted, launches = dense(device, tables)
    for each in (launch, *launches):
        each()
    assert bits([whole]) == bits([operands[0].astype(half)])
    assert bits([wide[:, 4:16]]) == bits([operands[4].astype(half)])
    assert not wide[:, :4].astype(np.float32).any()
    assert bits(operands) == bits(wanted[: len(operands)])


@pytest.mark.thorough
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_kernels_compile_for_the_gpu(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    for tables in CASES.values():
        launched(device, tables)
    compiled_by_nvcc(tmp_path, [source for source, _ in device.sources], "-w", *QUICKLY)
