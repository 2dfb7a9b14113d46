"""Moves loop invariants before their loop.

Input:  `%1 = While(%0, %para_w) {regions: @condition, @body}` where @body has `%0 = Cast(%para_w) {dst_type: Float32}`
Output: `%1 = Cast(%para_w) {dst_type: Float32}`, `%2 = While(%0, %1) {regions: @condition, @body}`

Moved are nodes without effects that depend on captured values which the loop does not overwrite: those that move or
convert elements, work element by element or along rows, reduce, or multiply matrices. Their results take memory while
the loop runs: so nothing is moved that has more elements than all that it is made of, as a broadcast has, nor more than
MAX_KEPT bytes a loop. Nodes that may fail, as lookups, are moved only out of loops that run at least once; nothing is
moved out of a branch.

Before gradients are taken, so that the iterations add up the gradient of the moved nodes. Nothing is moved out of a
graph that asks for gradients itself.
"""

from __future__ import annotations

import math
from collections import Counter

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import (
    STAGE,
    Constant,
    Graph,
    Node,
    Parameter,
    Value,
    copied_node,
    element_types,
    free_name,
    operand_types,
)
from mspc.ir.types import StackType, TensorType
from mspc.ops.control.custom import OwnGradient
from mspc.ops.control.regions import Loop
from mspc.ops.control.structural import Depend, Gradient, TupleGetItem
from mspc.ops.math.reduce import ReductionOp
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import WHOLE, Pass, live_values

MAX_KEPT = 2**30
"""Bytes of hoisted values that one loop may hold."""
SMALL = 2**16
"""Elements up to which something is moved that is made of constants alone."""


class HoistInvariants(Pass):
    """Move nodes out of the graphs of loops, inner loops first."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        return hoist(graph)


def hoist(graph: Graph, is_local: bool = False) -> bool:
    """Move invariants out of all loops, and return whether there were any. is_local: the graph is a rank's own, so that
    moved nodes need no layouts."""
    graphs = graph.graphs()
    runners = Counter(region for each in graphs for node in each.nodes for region in node.regions)
    changed = False
    for each in reversed(graphs):
        for node in list(each.nodes):
            if not isinstance(node.op, Loop) or (node.layout is not None and not is_local):
                continue
            if all(runners[region] == 1 for region in node.regions):
                for number in range(len(node.regions)):
                    changed |= _hoist(each, node, number, is_local)
    return changed


def _hoist(graph: Graph, loop: Node, number: int, is_local: bool) -> bool:
    op, region = loop.op, loop.regions[number]
    assert isinstance(op, Loop)
    if any(isinstance(node.op, Gradient | OwnGradient) for node in region.nodes):
        return False
    runs = number < len(loop.regions) - 1 or op.known_iterations([value.type for value in loop.inputs]) > 0
    outside = _captured_values(graph, loop, number)
    chosen = _hoisted_nodes(region, outside, runs, is_local)
    if not chosen:
        return False
    live = live_values(region.nodes, chosen)
    moved = [node for node in region.nodes if node in live]
    at = graph.nodes.index(loop)
    read = {*region.results, *(value for node in region.nodes if node not in live for value in node.inputs)}
    inside: dict[Value, Value] = {}
    for node in moved:
        outside[node] = copy = copied_node(node, [outside.get(value, value) for value in node.inputs])
        copy.attrs.pop(STAGE, None)  # of the loop over micro-batches: who reads it computes it
        graph.nodes.insert(at, copy)
        at += 1
        if node in chosen and node in read and isinstance(node.type, TensorType):
            loop.inputs.append(copy)
            taken = {parameter.name for each in loop.regions for parameter in each.parameters}
            name = free_name(copy.name or "hoisted", taken)
            for each in loop.regions:
                each.parameters.append(Parameter(name, copy.type, "input"))
            inside[node] = region.parameters[-1]
    region.replace(inside)
    left = live_values(region.nodes, region.results, lambda node: node not in live)
    region.nodes = [node for node in region.nodes if node in left]
    return True


def _captured_values(graph: Graph, loop: Node, number: int) -> dict[Value, Value]:
    """Return the outer values of the region's parameters that are the same in every iteration."""
    op, region = loop.op, loop.regions[number]
    assert isinstance(op, Loop)
    shown, within = Updates(graph), Updates(region)
    written = {parameter for operand in op.mutates for parameter in shown.parameters(loop.inputs[operand])}
    found: dict[Value, Value] = {}
    for operand in range(op.scanned_operands.stop, len(loop.inputs)):
        place, value = op.inside(number, operand), loop.inputs[operand]
        if place is None or operand in op.mutates or isinstance(value.type, StackType):
            continue
        if not written & shown.parameters(value) and region.parameters[place] not in within.numbers:
            found[region.parameters[place]] = value
    return found


def _hoisted_nodes(region: Graph, same: dict[Value, Value], runs: bool, is_local: bool) -> set[Value]:
    """Return the nodes to hand in. runs: the region runs at least once."""
    invariant: set[Value] = set(same)
    chosen: set[Value] = set()
    kept = 0
    for node in region.nodes:
        if not _may_move(node, runs) or not all(isinstance(v, Constant) or v in invariant for v in node.inputs):
            continue
        invariant.add(node)
        if not _is_worth(node, is_local) and not (node.op.is_view and any(value in chosen for value in node.inputs)):
            continue
        size = 0 if node.op.is_view else node.type.nbytes
        if kept + size <= MAX_KEPT:
            kept += size
            chosen.add(node)
    return chosen


def _may_move(node: Node, runs: bool) -> bool:
    """Return whether moving a node changes no result and no effect."""
    op = node.op
    if not isinstance(op, Op) or node.regions or op.mutates or op.has_side_effect or op.is_collective or op.draws:
        return False
    types = (*operand_types(node), *element_types(node.type))
    if isinstance(op, Depend) or op.constrains or any(isinstance(type, StackType) for type in types):
        return False
    if not runs and op.index_limits(*operand_types(node)):
        return False
    moves = op.is_view or op.moves or op.selects
    plain = moves or bool(op.cuda) or bool(op.row_lines) or isinstance(op, Cast | ReductionOp)
    return plain or not node.inputs or _multiplies(node)


def _multiplies(node: Node) -> bool:
    return isinstance(node.op, Op) and bool(node.op.operations(operand_types(node)))


def _is_worth(node: Node, is_local: bool) -> bool:
    """Return whether a node takes time in every iteration, and its result is no larger than its operands. Nodes made of
    constants alone, as masks, are moved in a rank's own graph only: passes recognize them in place."""
    op = node.op
    if not isinstance(op, Op) or op.is_view or isinstance(op, TupleGetItem) or op.uniform() is not None:
        return False
    elements = sum(type.size for type in element_types(node.type))
    if all(isinstance(value, Constant) for value in node.inputs):
        return is_local and elements <= SMALL
    return _multiplies(node) or elements <= sum(math.prod(type.shape) for type in operand_types(node))
