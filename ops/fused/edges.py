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

NO_ROW = 0x7FFFFFFE
"""Place of an integer that names no row."""


def places_in(xp: Any, ids: Any, size: int, offset: int, total: int) -> Any:
    """Return the rows of a slice of a table that ids name, as `RowLookup` says, NO_ROW for none. Raise IndexError, on
    the CPU, if an id is out of range of `total` rows."""
    if total:
        require_places(xp, ids, total)
    places = xp.where(ids < 0, ids + total, ids).astype(np.int64) - offset
    return xp.where((places >= 0) & (places < size), places, NO_ROW)


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

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.total or self.offset + self.size}

    def compute(self, xp: Any, ids: Any) -> Any:
        places = places_in(xp, ids.reshape(-1), self.size, self.offset, self.total)
        order = xp.argsort(places, kind="stable")
        names = places[order].astype(np.uint64) << np.uint64(32) | order.astype(np.uint64)
        return names, xp.searchsorted(places[order], xp.arange(self.size + 1)).astype(np.int32)

    def launch(self, device: Device, out: Any, ids: Array) -> Launch | None:
        lookup = RowLookup(1, 1, self.size, 1, math.prod(ids.shape), self.offset, self.total)
        return gpu.rows_by_number.order_rows(device, lookup, ids, *out)


class EdgeSums(RankOp):
    """Sums of the rows of edges that end at the same place: `EdgeSums(table, names, begins, sources, weights)`.

    names, begins: the order of the edges by their ends (`OrderRows`). With `looks_up` the row of an edge is that of the
    table at its source, else there are no sources and the table has a row per edge. With `weighted` equal parts of a
    row are multiplied by the edge's weights. shape: of the result. offset, total: of the table, as in `RowLookup`.
    """

    shape: tuple[int, ...] = ()
    dst_type: DType | None = None
    looks_up: bool = True
    weighted: bool = True
    offset: int = 0
    total: int = 0
    omitted = ("looks_up", "weighted", "offset", "total")
    traffic = "row_sums"

    def infer(self, *types: Any) -> TensorType:
        return TensorType(self.dst_type or types[0].dtype, self.shape)

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        rows = types[1].size * math.prod(self.shape[1:]) * types[0].dtype.itemsize
        return rows + sum(type.nbytes for type in (*types[1:], *results))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {3: self.total or self.offset + types[0].shape[0]} if self.looks_up else {}

    def _ends(self, others: Sequence[Any]) -> tuple[Any, Any]:
        return others[0] if self.looks_up else None, others[-1] if self.weighted else None

    def compute(self, xp: Any, table: Any, names: Any, begins: Any, *others: Any) -> Any:
        sources, weights = self._ends(others)
        width, size = math.prod(self.shape[1:]), self.shape[0]
        place, edge = (names >> np.uint64(32)).astype(np.int64), (names & np.uint64(0xFFFFFFFF)).astype(np.int64)
        place, edge = place[place < size], edge[place < size]
        if sources is None:
            rows = table.reshape(-1, width)[edge]
        else:
            row = places_in(xp, sources.reshape(-1), table.shape[0], self.offset, self.total)[edge]
            there = row != NO_ROW
            rows = only_inside(xp, table.reshape(-1, width)[xp.where(there, row, 0)], there[:, None])
        if weights is not None:
            heads = weights.size // max(1, names.size) or 1
            factors = weights.reshape(names.size, heads)[edge]
            rows = (rows.reshape(len(edge), heads, width // heads) * factors[:, :, None]).reshape(len(edge), width)
        out = xp.zeros((size, width), rows.dtype)
        xp.add.at(out, place, rows)
        return out.reshape(self.shape).astype((self.dst_type.numpy if self.dst_type else table.dtype), copy=False)

    def launch(self, device: Device, out: Any, table: Array, names: Array, begins: Array, *others: Array) -> Any:
        if not math.prod(self.shape):
            return None
        sources, weights = self._ends(others)
        width, count = math.prod(self.shape[1:]), names.size
        size = table.shape[0] if self.looks_up else count
        found = RowLookup(1, 1, size, width, count, self.offset, self.total)
        edges = gpu.rows_by_number.Edges(found, sources, weights)
        summed = RowLookup(1, 1, self.shape[0], width, count)
        named = gpu.rows_by_number.NamedRows(summed, table, names, out, edges=edges)
        return gpu.rows_by_number.edge_sums(device, named, names, begins)


class EdgeProducts(RankOp):
    """Products of the rows at both ends of edges, summed over equal parts of a row:
    `EdgeProducts(table, ids, other_table, other_ids)`.

    shape: of the result, as many sums per edge as a row has parts. ends: (offset, total) of each table, as in
    `RowLookup`.
    """

    shape: tuple[int, ...] = ()
    dst_type: DType | None = None
    ends: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    traffic = "row_sums"

    def infer(self, *types: Any) -> TensorType:
        return TensorType(self.dst_type or types[0].dtype, self.shape)

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        rows = sum(ids.size * math.prod(table.shape[1:]) * table.dtype.itemsize for table, ids in _pairs(types))
        return rows + types[1].nbytes + types[3].nbytes + results[0].nbytes

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        limits = [total or offset + table.shape[0] for (offset, total), (table, _) in self._sides(types)]
        return {1: limits[0], 3: limits[1]}

    def _sides(self, operands: Sequence[Any]) -> list[tuple[tuple[int, int], tuple[Any, Any]]]:
        return list(zip(self.ends, _pairs(operands), strict=True))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        found: list[Any] = []
        for (offset, total), (table, ids) in self._sides(inputs):
            rows = places_in(xp, ids.reshape(-1), table.shape[0], offset, total)
            there = rows != NO_ROW
            taken = table.reshape(table.shape[0], -1)[xp.where(there, rows, 0)]
            found.append(only_inside(xp, taken, there[:, None]))
        count = inputs[1].size
        heads = math.prod(self.shape) // max(1, count) or 1
        width = math.prod(inputs[0].shape[1:]) // heads
        made = (found[0] * found[1]).reshape(count, heads, width).sum(-1).reshape(self.shape)
        return made.astype(self.dst_type.numpy if self.dst_type else inputs[0].dtype, copy=False)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        count = math.prod(inputs[1].shape)
        sides = [
            (RowLookup(1, 1, table.shape[0], math.prod(table.shape[1:]), count, *end), table, ids)
            for end, (table, ids) in self._sides(inputs)
        ]
        return gpu.rows_by_number.edge_products(device, sides, math.prod(self.shape) // max(1, count), out)


def _pairs(operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(operands[0], operands[1]), (operands[2], operands[3])]
