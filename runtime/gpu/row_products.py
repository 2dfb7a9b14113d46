"""Products of runs of rows through cuBLASLt: the host says at every step where the runs lie.

What cuBLASLt is told of a product is made once, with an algorithm for runs as `foreseen`; at a step only the number of
rows in it changes, and where the operands begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from nvmath.bindings import cublasLt as lt

from mspc.ops.device import Array
from mspc.runtime.gpu.matmul import Products, Unsupported
from mspc.runtime.gpu.row_runs import Run, between, foreseen, lanes_of, runs_of, without
from mspc.runtime.workspaces import PRODUCTS

_EVEN = 128
"""Lengths of runs for which cuBLASLt is asked are multiples of it."""
_ALIGNED = 16
"""Bytes at whose multiples rows have to begin, wherever a run does."""
_TIMED = 4
"""Runs by which algorithms are timed, at most."""
_LANES = (2, 1)
"""Numbers of lanes; the first where nothing is timed."""


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
        self._choose(foreseen(rows, matrices, _TIMED))

    def _choose(self, runs: Sequence[Run]) -> None:
        """Find the algorithm that is fastest for such runs in lanes, and then the number of lanes."""
        products, choices = self._products, self._products.choices
        self._key = "rows", self._bound.key, tuple(runs)
        products.choose(self._key, self._bound, lambda algorithm: self._seconds(runs, algorithm, _LANES[0]))
        self._of_lanes = "lanes", *self._key
        if self._of_lanes not in choices:
            ways = _LANES[:1] if products.deterministic else _LANES
            chosen = products.algorithm(self._key)
            choices.choose(self._of_lanes, len(ways), lambda i: self._seconds(runs, chosen, ways[i]))

    def _seconds(self, runs: Sequence[Run], algorithm: int, lanes: int) -> float:
        try:
            return self._products.choices.seconds(lambda: self._all(runs, algorithm, lanes, strict=True))
        except lt.cuBLASLtError:
            return float("inf")

    def __call__(self, given: Iterable[tuple[int, slice]]) -> None:
        """Put the products on the current stream."""
        x, _, out = self._arrays
        runs = runs_of(given, x.shape[0], summed=self._outer)
        for matrix in without(runs, out.shape[0]) if self._outer else ():
            self._zero(slice(matrix, matrix + 1))
        for rows in () if self._outer else between(runs, x.shape[0]):
            self._zero(rows)
        chosen = self._products.choices[self._of_lanes]
        self._all(runs, self._products.algorithm(self._key), _LANES[chosen])

    def _zero(self, place: slice) -> None:
        part = self._arrays[2][place]
        part.data.memset_async(0, part.nbytes, self._products.current())

    def _all(self, runs: Sequence[Run], algorithm: int, lanes: int, strict: bool = False) -> None:
        """The products of runs. strict: raises cuBLASLt's error where the algorithm does not take one of them."""
        first, *others = lanes_of(runs, lanes)
        device = self._products.device
        begun = device.signal() if any(others) else None
        for own in filter(None, others):
            with device.stream("products"):
                device.wait(begun)
                self._lane(own, algorithm, 1, strict)
        self._lane(first, algorithm, 0, strict)
        if begun is not None:
            with device.stream("products"):
                ended = device.signal()
            device.wait(ended)

    def _lane(self, runs: Sequence[Run], algorithm: int, number: int, strict: bool) -> None:
        room = self._products.workspace_of(number).data.ptr, PRODUCTS, self._products.stream()
        for run in runs:
            self._run(run, algorithm, room, strict)

    def _run(self, run: Run, algorithm: int, room: tuple[int, int, int], strict: bool) -> None:
        x, y, out = self._arrays
        first, second, target = self._layouts
        count = np.array([run.end - run.begin], np.uint64)
        for layout in (first, second) if self._outer else (second, target):
            lt.matrix_layout_set_attribute(layout, lt.MatrixLayoutAttribute.COLS, count.ctypes.data, count.nbytes)
        right, result = (run.begin, run.matrix) if self._outer else (run.matrix, run.begin)
        place = _at(out, result)
        beta = self._betas[run.adds].ctypes.data
        operands = (self._products.handle, self._bound.description, self._alpha.ctypes.data, _at(y, right), first,
                    _at(x, run.begin), second, beta, place, target, place, target)  # fmt: skip
        try:
            lt.matmul(*operands, algorithm, *room)
        except lt.cuBLASLtError:  # the algorithm does not take so few or so many rows
            found = () if strict else self._bound.expected(1, self._layouts)
            if not len(found):
                raise
            lt.matmul(*operands, found.ctypes.data, *room)


def _at(array: Any, place: int) -> int:
    """The address of an entry along the first dimension."""
    return array.data.ptr + place * array.strides[0]
