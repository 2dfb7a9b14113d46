"""Products of runs of rows through cuBLASLt: the host says at every step where the runs lie.

What cuBLASLt is told of a product is made once, with an algorithm for runs of the length that even runs would have;
at a step only the number of rows in it changes, and where the operands begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from nvmath.bindings import cublasLt as lt

from mspc.ops.device import Array
from mspc.runtime.gpu.matmul import Products, Unsupported
from mspc.runtime.workspaces import PRODUCTS

_EVEN = 128
"""Lengths of runs for which an algorithm is looked for are multiples of it."""
_ALIGNED = 16
"""Bytes at whose multiples rows have to begin, wherever a run does."""


class RowProducts:
    """See `Device.products_of_rows`.

    Raises:
        Unsupported: cuBLASLt does not know the element type, or rows do not begin where it could read them.
    """

    def __init__(self, products: Products, x: Array, y: Array, out: Array, transpose_b: bool, outer: bool) -> None:
        self._products, self._arrays, self._outer = products, (x, y, out), outer
        rows, matrices = x.shape[0], (out if outer else y).shape[0]
        if any(each.shape[-1] * each.itemsize % _ALIGNED or each.data.ptr % _ALIGNED for each in self._arrays):
            raise Unsupported("rows that begin anywhere")
        if not all(each.size for each in self._arrays):
            raise Unsupported("no elements")
        even = min(rows, -(-rows // matrices // _EVEN) * _EVEN)
        one = (x[:even], y[:even], out[0]) if outer else (x[:even], y[0], out[:even])
        self._bound = products.bound(*one, outer, transpose_b)
        self._layouts = self._bound.own_layouts()
        self._alpha, self._betas = self._bound.factors()

    def __call__(self, runs: Iterable[tuple[int, slice]]) -> None:
        """Put the products on the current stream."""
        x, y, out = self._arrays
        runs = [(matrix, slice(*rows.indices(x.shape[0])[:2])) for matrix, rows in runs]
        stream = self._products.stream()
        if not self._outer:
            behind = 0
            for matrix, rows in runs:
                self._zero(slice(behind, rows.start))
                behind = max(behind, rows.stop)
                if rows.stop > rows.start:
                    self._run(_at(x, rows.start), _at(y, matrix), _at(out, rows.start), rows, False, stream)
            self._zero(slice(behind, x.shape[0]))
            return
        seen: set[int] = set()
        for matrix, rows in runs:
            if rows.stop > rows.start:
                place = _at(out, matrix)
                self._run(_at(x, rows.start), _at(y, rows.start), place, rows, matrix in seen, stream)
                seen.add(matrix)
        for matrix in range(out.shape[0]):
            if matrix not in seen:
                self._zero(slice(matrix, matrix + 1))

    def _zero(self, place: slice) -> None:
        out = self._arrays[2]
        if place.stop > place.start:
            part = out[place]
            part.data.memset_async(0, part.nbytes, self._products.current())

    def _run(self, x: int, y: int, out: int, rows: slice, add: bool, stream: int) -> None:
        first, second, target = self._layouts
        count = np.array([rows.stop - rows.start], np.uint64)
        for layout in (first, second) if self._outer else (second, target):
            lt.matrix_layout_set_attribute(layout, lt.MatrixLayoutAttribute.COLS, count.ctypes.data, count.nbytes)
        products, bound = self._products, self._bound
        beta = self._betas[add]
        operands = (products.handle, bound.description, self._alpha.ctypes.data, y, first, x, second,
                    beta.ctypes.data, out, target, out, target)  # fmt: skip
        room = products.workspace.data.ptr, PRODUCTS, stream
        try:
            lt.matmul(*operands, bound.algorithm, *room)
        except lt.cuBLASLtError:  # the algorithm does not take so few or so many rows
            found = bound.expected(1, self._layouts)
            if not len(found):
                raise
            lt.matmul(*operands, found.ctypes.data, *room)


def _at(array: Any, place: int) -> int:
    """The address of an entry along the first dimension."""
    return array.data.ptr + place * array.strides[0]
