"""Removes unneeded nodes: dead ones, tuples taken apart again, repeated and constant backward operators.

Forward operators that a user wrote stay as they are written (only dead ones go), so that dumps show the program.
Input:  `%2 = MakeTuple(%0, %1)`, `%3 = TupleGetItem(%2) {index: 1}`. Output: `%1` in the place of `%3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np

from mspc.analysis.aliasing import Updates, aliased_operands, last_reads
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.temporary import temporarily
from mspc.ir.types import TensorType, Type
from mspc.ir.varying import VaryingConstant, constant_bytes
from mspc.ops.control.structural import CALL, Depend, MakeTuple, TupleGetItem, is_constraint
from mspc.ops.math.arithmetic import AddN, Mul
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.base import WHOLE, Pass, live_values, runs_anyway
from mspc.passes.lib.batch_rows import ROWS

LARGEST_FOLDED = 16
"""Elements up to which the result of a constant operator is computed at compile time."""


@dataclass
class Compiling:
    """The backend on which constants are computed at compile time."""

    xp: Any = np
    comm: Any = None
    step: int = 0


class Simplify(Pass):
    """Forward tuples, fold constants, merge equal backward operators, remove dead code."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if any(node.regions for node in graph.nodes):
            # until no boundary changes: dead results of an inner graph make nodes outside dead, and the other way
            return in_all_graphs(graph, _simplified)
        return _simplified(graph)


def _simplified(graph: Graph, elsewhere: Collection[Value] = ()) -> bool:
    before = len(graph.nodes)
    replaced = _forward_values(graph)
    removed = remove_dead(graph, elsewhere)
    return replaced or removed or len(graph.nodes) != before


def in_all_graphs(program: Graph, clean: Callable[[Graph, Collection[Value]], bool]) -> bool:
    """Clean a program and all of its regions until nothing changes, and return whether anything did."""
    from mspc.passes.lib.region_cleanup import simplify_borders  # late: few networks have regions

    changed, goes_on = False, True
    while goes_on:
        graphs = program.graphs()
        nodes: set[Value] = {node for graph in graphs for node in graph.nodes}
        for graph in graphs:
            with temporarily(graph, attrs=program.attrs):  # it says how far the compile is
                changed |= clean(graph, nodes)
        goes_on = simplify_borders(program)
        changed |= goes_on
    live = {*program.all_nodes()}
    for node in live:
        if node.forward is not None and node.forward not in live:
            node.forward = None
    return changed


def _forward_values(graph: Graph) -> bool:
    replaced: dict[Value, Value] = {}
    known = _Known()
    constants = _Constants()
    updates = Updates(graph)
    own_gradients = graph.attrs.get("mode") == "data_parallel"
    reads = cache(lambda: last_reads(graph, aliased_operands))
    for number, node in enumerate(graph.nodes):
        if replaced or any(isinstance(v, Constant) for v in node.inputs):
            node.inputs = [constants.unique(replaced.get(v, v)) for v in node.inputs]
        simpler = _simpler_value(node)
        if own_gradients and "gradient_for" in node.attrs and not isinstance(simpler, Node):
            simpler = None  # the node says whose gradient it is, and ranks still have to add it
        if simpler is not None and updates.changes(simpler):
            last = reads().get(node, -1)
            if updates.between((simpler,), number, last):  # its readers after an update want the former value
                simpler = None
                if is_constraint(node):
                    node.op = Cast(dst_type=node.tensor_type.dtype)  # a copy of it
        if simpler is None and node.phase != "forward" and not node.op.has_side_effect:
            # A reader of a parameter before an update differs from one after it.
            since = updates.last_before(node.inputs, number) if number > updates.first else -1
            layouts = (node.layout, node.in_layouts, node.in_strategy)
            drawn = (node.attrs.get(ROWS), node.regions, node.attrs.get(CALL))
            key = (tuple(map(id, node.inputs)), node.phase, layouts, since, *drawn)
            earlier = known.first(node, key)
            if earlier is not node:
                simpler = earlier
                both = _gradients_of_both(earlier, node)
                for name, value in node.attrs.items():
                    earlier.attrs.setdefault(name, value)
                earlier.attrs |= both
        elif isinstance(simpler, Node):
            simpler.attrs |= _gradients_of_both(simpler, node)
        if simpler is not None:
            replaced[node] = simpler
    graph.results = [replaced.get(v, v) for v in graph.results]
    return bool(replaced)


def _gradients_of_both(remaining: Node, gone: Node) -> dict[str, str]:
    """Return the attribute that names the parameters whose gradient the remaining node is now, if any."""
    names = [str(node.attrs["gradient_for"]) for node in (remaining, gone) if "gradient_for" in node.attrs]
    return {"gradient_for": ",".join(names)} if names else {}


class _Known:
    """Nodes by everything else that makes them equal, then by operator. Operators with stand-ins, which cannot be
    hashed, are compared with all nodes that are equal in the rest."""

    def __init__(self) -> None:
        self._exact: dict[Any, dict[Any, Node]] = {}
        self._varying: dict[Any, list[Node]] = {}

    def first(self, node: Node, rest: tuple[Any, ...]) -> Node:
        op = node.op
        exact = self._exact.setdefault(rest, {})
        varying = self._varying.get(rest, ()) if self._varying else ()
        try:
            found = exact.get(op)
        except TypeError:
            for other in (*exact.values(), *varying):
                if other.op == op:
                    return other
            self._varying.setdefault(rest, []).append(node)
            return node
        if found is None:
            found = exact[op] = next((other for other in varying if other.op == op), node)
        return found


class _Constants:
    """One object for equal constants, so that nodes reading them can be recognised as equal."""

    def __init__(self) -> None:
        self._known: dict[tuple[Type, bytes], Constant] = {}
        self._varying: list[VaryingConstant] = []

    def unique(self, value: Value) -> Value:
        if not isinstance(value, Constant):
            return value
        if isinstance(value, VaryingConstant):
            return self._varied(value)
        key = (value.type, constant_bytes(value))
        found = self._known.get(key)
        if found is None:
            same = (other for other in self._varying if other.type == value.type and other.same_as(value))
            found = self._known[key] = next(same, value)
        return found

    def _varied(self, value: VaryingConstant) -> Value:
        for other in (*self._known.values(), *self._varying):
            if other.type == value.type and value.same_as(other):
                return other
        self._varying.append(value)
        return value


def _simpler_value(node: Node) -> Value | None:
    """Return a value that equals the node's result, if there is one."""
    op = node.op
    if isinstance(op, TupleGetItem):
        source = node.inputs[0]
        return source.inputs[op.index] if isinstance(source, Node) and isinstance(source.op, MakeTuple) else None
    if isinstance(op, Depend):
        return node.inputs[0]  # nodes run in their order, and those with side effects are never dropped
    if isinstance(op, Cast) and node.inputs[0].type == node.type and node.layout == node.inputs[0].layout:
        return node.inputs[0]
    if is_constraint(node) and node.in_strategy is None:
        return node.inputs[0]
    if node.phase == "forward":
        return None
    if isinstance(op, AddN) and len(node.inputs) == 1:
        return node.inputs[0]
    if ROWS in node.attrs:
        return None
    if isinstance(op, Reshape) and node.inputs[0].type == node.type and node.layout == node.inputs[0].layout:
        return node.inputs[0]
    if isinstance(op, Mul):
        for one, other in (node.inputs, node.inputs[::-1]):
            is_one = isinstance(one, Constant) and one.value.size == 1 and one.value.item() == 1.0
            if is_one and other.type == node.type:
                return other
    return _folded(node)


def _folded(node: Node) -> Constant | None:
    if not isinstance(node.type, TensorType) or node.type.size > LARGEST_FOLDED or node.op.has_side_effect:
        return None
    if not node.inputs or not all(isinstance(v, Constant) for v in node.inputs) or not isinstance(node.op, Op):
        return None
    if node.layout is not None or math.prod(node.type.shape) != node.type.size:
        return None
    result = node.op.kernel(Compiling())(*(v.value for v in node.inputs if isinstance(v, Constant)))
    return Constant(np.asarray(result), node.type.dtype)


def remove_dead(graph: Graph, elsewhere: Collection[Value] = ()) -> bool:
    """Drop nodes without side effects whose results nobody reads, and constants nobody reads; whether that changes the
    graph's text.

    Forward operators with a strategy stay until a rank's graph is made ready to run: a network that is called for its
    gradients alone still shows how all of it is sharded.

    elsewhere: nodes of other graphs, which nodes of this one may be the gradients of.
    """
    live = live_values(graph.nodes, graph.results, runs_anyway)
    shown: set[Value] = set()
    remaining: list[Node] = []
    marked = False
    for node in reversed(graph.nodes):
        if node in live:
            remaining.append(node)
        elif node in shown or (node.in_strategy is not None and node.phase == "forward" and "rank" not in graph.attrs):
            marked |= "unused" not in node.attrs
            node.attrs["unused"] = True
            shown.update(node.inputs)
            remaining.append(node)
    remaining.reverse()
    live |= shown
    parameters = [p for p in graph.parameters if p in live or p.kind != "constant"]
    changed = marked or len(remaining) != len(graph.nodes) or len(parameters) != len(graph.parameters)
    graph.nodes, graph.parameters = remaining, parameters
    for node in remaining:
        if node.forward is not None and node.forward not in live and node.forward not in elsewhere:
            node.forward = None  # one that is gone, so that no text names it
    return changed
