"""Tables whose rows are updated, for the kernels of GPUs and the loops of CPUs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.tensor.embedding import GatherGrad, RowSums, UnsortedSegmentSum
from tests.operators import FusedUpdate, GroupedRowUpdate

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

    def types(self) -> list[TensorType]:
        return [TensorType(dtype_of(x.dtype), x.shape) for x in self.operands]


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


def bits(arrays: Sequence[Any]) -> list[bytes]:
    """The arrays' bytes, all NaN being one."""
    found = [np.array(x) for x in arrays]
    for x in found:
        x[x != x] = 1234
    return [x.tobytes() for x in found]
