"""Runs operators that draw numbers on one device that has the rows of several places: it draws for the global batch,
and every place has its own rows of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ops.random.words import draws_by_place
from mspc.passes.lib.batch_rows import FIRST, FedRows, Rows, rows_beside
from mspc.runtime.backend import NumPyBackend
from mspc.verify.data_parallel.global_batch import SCRIPT

Array = Any


def rows_of_draws(graph: Graph, sharded: list[bool], global_graph: Graph | None) -> dict[Node, Rows]:
    """Where the places' rows are in what operators of `graph` draw.

    Args:
        sharded: for every input whether places have rows of their own. global_graph: the network on all rows, whose
        shapes say which dimension grows with it; without it the operators' rules say that.
    """
    inputs = [p for p in graph.parameters if p.kind == "input"]
    given: dict[Value, Rows] = {p: FIRST for p, own in zip(inputs, sharded, strict=True) if own}
    followed = FedRows(graph, given)
    found: dict[Node, Rows] = {}
    others = {node.attrs[SCRIPT]: node for node in (global_graph.nodes if global_graph else ()) if SCRIPT in node.attrs}
    for node in graph.nodes:
        if not draws_by_place(node.op):
            continue
        rows = followed.of(node)
        other = others.get(node.attrs.get(SCRIPT))
        if other is not None:
            own, all_of = (element_types(n.type)[0].shape for n in (node, other))
            grown = next((d for d, (a, b) in enumerate(zip(own, all_of, strict=True)) if a != b), None)
            rows = None if grown is None else (rows if rows is not None and rows[0] == grown else (grown, 1))
        if rows is not None:
            found[node] = rows
    return found


def rows_on_ranks(graph: Graph, many: Graph, mark: str) -> dict[Node, Rows]:
    """The rows for which the ranks' operators of the same number draw. mark: the attribute that has numbers."""
    others = {node.attrs[mark]: node.op for node in many.nodes if mark in node.attrs and draws_by_place(node.op)}
    found: dict[Node, Rows] = {}
    for node in graph.nodes:
        other = others.get(node.attrs.get(mark))
        if other is not None and other.rows:
            found[node] = (other.rows[0], other.rows[1])
    return found


def drawing_at_places(rows: Mapping[Node, Rows]) -> Callable[[Node, NumPyBackend], Callable[..., Any] | None]:
    """The kernels of operators that draw numbers for rows; None for all others."""

    def kernel_of(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        if backend.comm.size == 1 or node not in rows or not draws_by_place(node.op):
            return None
        op, (dimension, _), comm = node.op, rows[node], backend.comm
        size = element_types(node.type)[0].shape[dimension]
        operand_rows, result_rows = rows_beside(node, rows[node])

        def gathered(array: Array, place: Rows | None) -> Array:
            if place is None or array.shape[place[0]] != size:  # it is the same for all rows
                return array
            axis = place[0]
            parts = comm.all_gather(_parted(array, *place), tuple(range(comm.size)), axis + 1)
            return parts.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])

        def own(array: Array, place: Rows | None) -> Array:
            if place is None:
                return array
            axis = place[0]
            mine = np.split(_parted(array, *place), comm.size, axis + 1)[comm.rank]
            return np.array(mine.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :]))

        def kernel(*operands: Array) -> Any:
            shape = getattr(op, "shape", ())
            grown: Any = op
            if shape:
                grown = replace(grown, shape=(*shape[:dimension], size * comm.size, *shape[dimension + 1 :]))
            found = grown.kernel(backend)(*map(gathered, operands, operand_rows))
            return tuple(map(own, found, result_rows)) if isinstance(found, tuple) else own(found, result_rows[0])

        return kernel

    return kernel_of


def _parted(array: Array, axis: int, outer: int) -> Array:
    return array.reshape(*array.shape[:axis], outer, array.shape[axis] // outer, *array.shape[axis + 1 :])
