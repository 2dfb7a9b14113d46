"""Updates of rows in kernels change parameters as updates of tables do, to the bit, and touch no other rows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import dtype_of
from mspc.ops.device import PRELUDE, Copy
from mspc.ops.fused.grouped_row_update import GroupedRowUpdate
from mspc.ops.fused.update import FusedUpdate
from mspc.ops.tensor.embedding import GatherGrad, RowSums, UnsortedSegmentSum
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, placed

pytestmark = pytest.mark.skipif(NEEDED is None, reason="needs g++")
PLAIN = FusedUpdate(("Mul(x1, x2)", "Sub(x0, t0)"), (1,), (2,))
NARROW = FusedUpdate(("Cast(x1, dst_type=Float32)", "Mul(t0, x2)", "Sub(x0, t1)"), (2,), (2,))
ADDED = FusedUpdate(("Neg(x2)", "Mul(x1, t0)", "Add(x0, t1)"), (2,), (2,))
TWICE = FusedUpdate(("Mul(x2, x3)", "Sub(x0, t0)", "Sub(x1, t0)"), (1, 2), (3,))


class Tables:
    """Operands of a group. shapes: (rows, elements of a row, integers) of every member."""

    def __init__(self, update: FusedUpdate, gradient: int, dtypes: tuple[str, str, str],
                 sums: Sequence[tuple[RowSums, tuple[int, int, int], int]]) -> None:  # fmt: skip
        random = np.random.default_rng(7)
        self.op = GroupedRowUpdate.of(update, gradient, [op for op, _, _ in sums])
        self.operands: list[Any] = []
        rate = np.array(0.3, np.float32)
        parameter, rows_type, ids_type = (dtype_of(name).numpy for name in dtypes)
        for _, (size, inner, count), high in sums:
            for index in range(len(update.operands)):
                if index == gradient:
                    rows = random.standard_normal((count, inner)).astype(rows_type)
                    self.operands += [rows, random.integers(-2, high, count).astype(ids_type)]
                elif index in update.numbers:
                    self.operands.append(rate.astype(parameter))
                else:
                    held = random.standard_normal((size, inner)).astype(parameter)
                    held[random.random(size) < 0.2] = -0.0
                    held[random.random(size) < 0.1] = np.nan
                    self.operands.append(held)

    def expected(self, device: Emulator) -> list[Any]:
        """What the dense update makes of copies, from sums in memory."""
        operands = [placed(x) for x in self.operands]
        for op, own, (rows, ids) in self.op.members(operands):
            made = placed(np.zeros((len(own[0]), *rows.shape[1:]), rows.dtype))
            own[self.op.gradient] = made
            add, update = op.launch(device, [rows, ids], made), self.op.member.launch(device, own, own[0])
            assert add is not None
            assert update is not None
            add()
            update()
        return operands


def plain(*sizes: int, count: int = 700, inner: int = 12, high: int = 40) -> list[Any]:
    return [(GatherGrad(size, 0, 0, size), (size, inner, count), min(high, size)) for size in sizes]


CASES = {
    "one table": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(50)),
    "many sizes": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(50, 3, 9000, count=2300)),
    "long runs": Tables(PLAIN, 1, ("Float32", "Float32", "Int64"), plain(4, 4, count=5000, inner=8, high=1)),
    "wide rows": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(90, 800, inner=128, count=100)),
    "odd rows": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(90, inner=7)),
    "doubles": Tables(PLAIN, 1, ("Float64", "Float64", "Int32"), plain(90, inner=6)),
    "halves": Tables(PLAIN, 1, ("Float16", "Float16", "Int32"), plain(90, inner=16)),
    "narrow gradients": Tables(NARROW, 1, ("Float32", "BFloat16", "Int32"), plain(90, 20, inner=16)),
    "added": Tables(ADDED, 1, ("Float32", "Float32", "Int32"), plain(90)),
    "two parameters": Tables(TWICE, 2, ("Float32", "Float32", "Int32"), plain(90, 40)),
    "a slice": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"),
                      [(UnsortedSegmentSum(20, 5), (20, 12, 300), 60), (GatherGrad(20, 0, 30, 90), (20, 12, 300), 90)]),
    "no rows": Tables(PLAIN, 1, ("Float32", "Float32", "Int32"), plain(5, count=0)),
}  # fmt: skip


def launched(device: Emulator, tables: Tables, copies: Any = None) -> tuple[list[Any], Any]:
    """(operands, launch)."""
    operands = [placed(x) for x in tables.operands]
    out = tuple(operands[i] for i in tables.op.mutates)
    return operands, tables.op.launch(device, operands, out, copies)


def bits(arrays: Sequence[Any]) -> list[bytes]:
    """The arrays' bytes, all NaN being one."""
    found = [np.array(x) for x in arrays]
    for x in found:
        x[x != x] = 1234
    return [x.tobytes() for x in found]


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_dense_updates(name: str, tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    tables = CASES[name]
    operands, launch = launched(device, tables)
    expected = tables.expected(device)
    launch()
    assert bits(operands) == bits(expected)


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
    launch()
    assert bits([whole]) == bits([operands[0].astype(half)])
    assert bits([wide[:, 4:16]]) == bits([operands[4].astype(half)])
    assert not wide[:, :4].astype(np.float32).any()
    assert bits(operands) == bits(tables.expected(device))


def test_kernels_compile_for_the_gpu(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    device = Emulator(tmp_path)
    for tables in CASES.values():
        launched(device, tables)
    text = PRELUDE
    for number, (source, _) in enumerate(device.sources):
        text += f"namespace k{number} {{\n" + source.replace('extern "C" __global__', "__global__") + "}\n"
    path = tmp_path / "all.cu"
    path.write_text(text)
    options = ["-arch=sm_90", "-std=c++17", "-cubin", "-Xcicc", "-O0", "-Xptxas", "-O0"]
    done = subprocess.run([nvcc, *options, "-w", "-o", str(tmp_path / "all.cubin"), str(path)], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
