"""Sums and products over the edges of a graph: kernels read rows by the edges' ends, no tensor has a row per edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import INT32, UINT64, DType, TensorType, TupleType
from mspc.ops import gpu
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.device import Array, Device, Launch
from mspc.ops.fused.body import RankOp
from mspc.ops.tensor.embedding import only_inside, require_places
from mspc.ops.tensor.scatter import HOW, put_at

NO_ROW = 0x7FFFFFFE
"""Place of an integer that names no row."""


def _places(xp: Any, ids: Any, size: int, offset: int, total: int) -> Any:
    """Return the rows of a slice of a table that ids name, as `RowLookup` says, NO_ROW for none. Raise IndexError, on
    the CPU, if an id is out of range of `total` rows."""
    if total:
        require_places(xp, ids, total)
    places = xp.where(ids < 0, ids + total, ids).astype(np.int64).reshape(-1) - offset
    return xp.where((places >= 0) & (places < size), places, NO_ROW)


def _rows(xp: Any, table: Any, ids: Any, end: tuple[int, int]) -> Any:
    """Return the rows [ids, elements] of a table, zeros for ids that name none."""
    places = _places(xp, ids, table.shape[0], *end)
    rows = table.reshape(table.shape[0], math.prod(table.shape[1:]))[xp.where(places == NO_ROW, 0, places)]
    return only_inside(xp, rows, (places != NO_ROW)[:, None])


_HAS_TOTAL: Any = property(lambda op: bool(op.total))
"""`Op.refuses_indices` of lookups: without a total, other indices name no row."""


class OrderRows(RankOp):
    """The order in which sums by integers read rows: (names [count], begins [size + 1]).

    A name is UInt64, its place in the upper half and the number of its row in the lower one. begins: the first name of
    every place. offset, total: as in `RowLookup`.
    """

    size: int = 0
    offset: int = 0
    total: int = 0

    def infer(self, *types: Any) -> TupleType:
        return TupleType((TensorType(UINT64, (types[0].size,)), TensorType(INT32, (self.size + 1,))))

    refuses_indices = _HAS_TOTAL

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.total or self.offset + self.size}

    def compute(self, xp: Any, ids: Any) -> Any:
        places = _places(xp, ids, self.size, self.offset, self.total)
        order = xp.argsort(places, kind="stable")
        names = places[order].astype(np.uint64) << np.uint64(32) | order.astype(np.uint64)
        return names, xp.searchsorted(places[order], xp.arange(self.size + 1)).astype(np.int32)

    def launch(self, device: Device, out: Any, ids: Array) -> Launch | None:
        lookup = RowLookup(1, 1, self.size, 1, math.prod(ids.shape), self.offset, self.total)
        return gpu.rows_by_number.order_rows(device, lookup, ids, *out)


class _OverEdges(RankOp, abstract=True):
    """shape, dst_type: of the result."""

    shape: tuple[int, ...] = ()
    dst_type: DType | None = None
    traffic = "row_sums"

    def infer(self, *types: Any) -> TensorType:
        return TensorType(self.dst_type or types[0].dtype, self.shape)

    def _stored(self, result: Any, table: Any) -> Any:
        dtype = table.dtype if self.dst_type is None else self.dst_type.numpy
        return result.reshape(self.shape).astype(dtype, copy=False)


class EdgeSums(_OverEdges):
    """Sums of the rows of edges that end at the same place: `EdgeSums(table, names, begins, sources, weights)`.

    combine: "add", or "maximum" or "minimum" for extrema, infinities if no edge ends at a place.

    names, begins: the order of the edges by their ends (`OrderRows`). With `looks_up` the row of an edge is that of the
    table at its source, else there are no sources and the table has a row per edge. With `weighted` equal parts of a
    row are multiplied by the edge's weights. offset, total: of the table, as in `RowLookup`.
    """

    looks_up: bool = True
    weighted: bool = True
    offset: int = 0
    total: int = 0
    combine: str = "add"
    omitted = ("looks_up", "weighted", "offset", "total", "combine")

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        rows = types[1].size * math.prod(self.shape[1:]) * types[0].dtype.itemsize
        return rows + sum(type.nbytes for type in (*types[1:], *results))

    refuses_indices = _HAS_TOTAL

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {3: self.total or self.offset + types[0].shape[0]} if self.looks_up else {}

    def compute(self, xp: Any, table: Any, names: Any, begins: Any, *others: Any) -> Any:
        size, width, count = self.shape[0], math.prod(self.shape[1:]), len(names)
        rows = _rows(xp, table, others[0], (self.offset, self.total)) if self.looks_up else table
        rows = rows.reshape(count, width)
        if self.weighted and count:
            weights = others[-1].reshape(count, -1, 1)
            rows = (rows.reshape(count, weights.shape[1], -1) * weights).reshape(count, width)
        place, edge = (names >> np.uint64(32)).astype(np.int64), (names & np.uint64(0xFFFFFFFF)).astype(np.int64)
        neutral = {"add": 0, "maximum": -np.inf, "minimum": np.inf}[self.combine]
        out = xp.full((size, width), neutral, rows.dtype)
        put_at(xp, self.combine, out, place[place < size], rows[edge[place < size]])
        return self._stored(out, table)

    def launch(self, device: Device, out: Any, table: Array, names: Array, begins: Array, *others: Array) -> Any:
        if not math.prod(self.shape):
            return None
        width, count = math.prod(self.shape[1:]), names.size
        size = table.shape[0] if self.looks_up else count
        edges = gpu.rows_by_number.Edges(
            RowLookup(1, 1, size, width, count, self.offset, self.total), others[0] if self.looks_up else None,
            others[-1] if self.weighted else None,
        )  # fmt: skip
        summed = RowLookup(1, 1, self.shape[0], width, count)
        named = gpu.rows_by_number.NamedRows(summed, table, names, out, edges=edges, how=HOW[self.combine])
        return gpu.rows_by_number.added_rows(device, "edge_sums", [named], 0, (names, begins))


class EdgeProducts(_OverEdges):
    """Products of the rows at both ends of edges, summed over equal parts of a row, as many as the result has elements
    per edge: `EdgeProducts(table, ids, other_table, other_ids, names)`. ends: (offset, total) of each table, as in
    `RowLookup`. names: the order by one end (`OrderRows`), in which kernels take the edges; none for their own."""

    ends: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        rows = sum(ids.size * math.prod(table.shape[1:]) * table.dtype.itemsize for _, table, ids in self._sides(types))
        return rows + types[1].nbytes + types[3].nbytes + results[0].nbytes

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        limits = [total or offset + table.shape[0] for (offset, total), table, _ in self._sides(types)]
        return {1: limits[0], 3: limits[1]}

    def _sides(self, operands: Sequence[Any]) -> list[tuple[tuple[int, int], Any, Any]]:
        return list(zip(self.ends, operands[:4:2], operands[1:4:2], strict=True))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        first, second = (_rows(xp, table, ids, end) for end, table, ids in self._sides(inputs))
        parts = (math.prod(self.shape), first.shape[1] * len(first) // max(1, math.prod(self.shape)))
        return self._stored((first * second).reshape(parts).sum(-1), inputs[0])

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        count = math.prod(inputs[1].shape)
        sides = [
            (RowLookup(1, 1, table.shape[0], math.prod(table.shape[1:]), count, *end), table, ids)
            for end, table, ids in self._sides(inputs)
        ]
        names = inputs[4] if len(inputs) > 4 else None
        return gpu.rows_by_number.edge_products(device, sides, math.prod(self.shape) // max(1, count), names, out)
