"""Runs operators that draw numbers on one device that has the rows of several places: it draws for the global batch,
and every place has its own rows of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Parameter, Value, element_types
from mspc.ops.random.words import draws_by_place
from mspc.ops.tensor.moving import Concat, Tile
from mspc.ops.tensor.reshape import ExpandDims, Flatten, Reshape, Squeeze
from mspc.passes.lib.batch_rows import FIRST, FedRows, Rows, rows_beside
from mspc.runtime.backend import NumPyBackend
from mspc.verify.data_parallel.global_batch import SCRIPT

Array = Any


Grown = dict[Value, int]
"""By value the dimension that is larger on the batch of all ranks than on the rows of one."""


def rows_of_draws(graph: Graph, sharded: list[bool], global_graph: Graph | None) -> dict[Node, Rows]:
    """Find the rows of the batch in what operators of `graph` draw.

    Args:
        sharded: for every input whether places have rows of their own. global_graph: the network on all rows, whose
        shapes say which dimension grows with it. Without it the rows are those of the pass that lets ranks draw.
    """
    if global_graph is not None:
        return rows_by_sizes(graph, grown_dimensions(graph, sharded, global_graph))
    followed = FedRows(graph, dict.fromkeys(_inputs(graph, sharded), FIRST))
    found = {node: followed.of(node) for node in graph.nodes if draws_by_place(node.op)}
    return {node: rows for node, rows in found.items() if rows is not None}


def _inputs(graph: Graph, sharded: list[bool]) -> list[Parameter]:
    inputs = [p for p in graph.parameters if p.kind == "input"]
    return [p for p, own in zip(inputs, sharded, strict=True) if own]


def grown_dimensions(graph: Graph, sharded: list[bool], global_graph: Graph) -> Grown:
    """Return the dimension in which each value of the script grows with the batch, by the shapes of the network on all
    rows."""
    found: Grown = dict.fromkeys(_inputs(graph, sharded), 0)
    others = {node.attrs[SCRIPT]: node for node in global_graph.nodes if SCRIPT in node.attrs}
    for node in graph.nodes:
        other = others.get(node.attrs.get(SCRIPT))
        if other is not None and element_types(node.type):
            own, all_of = (element_types(n.type)[0].shape for n in (node, other))
            grown = next((d for d, (a, b) in enumerate(zip(own, all_of, strict=True)) if a != b), None)
            found |= {} if grown is None else {node: grown}
    return found


def rows_by_sizes(graph: Graph, grown: Grown) -> dict[Node, Rows]:
    """Find the rows in what is drawn from sizes alone, without the rules that the ranks' pass follows.

    The grown dimension may hold several equal parts that each begin with rows. Parts are followed from the inputs, and
    back to draws that read none from what they are combined with.
    """
    parts: dict[Value, int] = {value: 1 for value in grown if isinstance(value, Parameter)}
    for node in graph.nodes:
        read = [value for value in node.inputs if value in parts]
        if node in grown and read:
            parts[node] = _parts(node, read, grown, parts)
    for node in reversed(graph.nodes):
        for value in node.inputs if node in parts else ():
            if value in grown and value not in parts:
                blocks = _before(node, grown) * parts[node]
                parts[value] = blocks // _before(value, grown) if isinstance(node.op, RESHAPES) else parts[node]
    return {n: (grown[n], parts.get(n, 1) or 1) for n in graph.nodes if n in grown and draws_by_place(n.op)}


RESHAPES = (Reshape, Flatten, ExpandDims, Squeeze)
"""Operators that keep the order of all elements."""


def _parts(node: Node, read: list[Value], grown: Grown, parts: Mapping[Value, int]) -> int:
    op, first = node.op, read[0]
    if isinstance(op, RESHAPES):
        return _before(first, grown) * parts[first] // _before(node, grown) or 1
    if isinstance(op, Concat) and op.axis % len(node.shape) == grown[node]:
        return sum(parts[value] for value in read)
    if isinstance(op, Tile):
        return parts[first] * op.multiples[grown[node]]
    return parts[first]


def _before(value: Value, grown: Grown) -> int:
    """The elements of all dimensions before the one that grows."""
    return math.prod(element_types(value.type)[0].shape[: grown[value]])


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
