"""Runs operators that draw numbers on one device that has the rows of several places: it draws for the global batch,
and every place has its own rows of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ops.random.row_offsets import DrawnByPlace
from mspc.passes.sharding.batch_rows import FIRST, FedRows, Rows
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
        if not isinstance(node.op, DrawnByPlace):
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


def drawing_at_places(rows: Mapping[Node, Rows]) -> Callable[[Node, NumPyBackend], Callable[..., Any] | None]:
    """The kernels of operators that draw numbers for rows; None for all others."""

    def kernel_of(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        if backend.comm.size == 1 or node not in rows or not isinstance(node.op, DrawnByPlace):
            return None
        op, (dimension, outer), comm = node.op, rows[node], backend.comm
        rank = len(element_types(node.type)[0].shape)
        size = element_types(node.type)[0].shape[dimension]

        def gathered(array: Array) -> Array:
            axis = dimension - rank + np.ndim(array)
            if axis < 0 or array.shape[axis] != size:
                return array
            parts = comm.all_gather(_parted(array, axis, outer), tuple(range(comm.size)), axis + 1)
            return parts.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :])

        def own(array: Array) -> Array:
            parts = _parted(array, dimension, outer)
            mine = np.split(parts, comm.size, dimension + 1)[comm.rank]
            return np.array(mine.reshape(*array.shape[:dimension], size, *array.shape[dimension + 1 :]))

        def kernel(*operands: Array) -> Any:
            shape = getattr(op, "shape", ())
            grown = op
            if shape:
                grown = replace(op, shape=(*shape[:dimension], size * comm.size, *shape[dimension + 1 :]))  # type: ignore[call-arg]  # it has the field
            found = grown.kernel(backend)(*map(gathered, operands))
            return tuple(map(own, found)) if isinstance(found, tuple) else own(found)

        return kernel

    return kernel_of


def _parted(array: Array, axis: int, outer: int) -> Array:
    return array.reshape(*array.shape[:axis], outer, array.shape[axis] // outer, *array.shape[axis + 1 :])
