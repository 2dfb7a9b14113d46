"""Joins the loop over micro-batches with that of its gradient, so that saved values do not wait for other micro-
batches.

Input:  `%4 = Scan(%x, %w) {turns: 8, micro_batches: true}` with its gradient's operands stacked, and
        `%9 = Scan(%zeros, %grads, %saved, %w) {turns: 8, reverse: true}` of the gradient.
Output: `%9 = Scan(%zeros, %x, %grads, %w) {turns: 8, micro_batches: true}` whose turn does both for one micro-batch.

This needs a second loop whose operands do not depend on results of the first
except through its scanned operands, and two loops that carry only sums. Other loops stay.
"""

from __future__ import annotations

from mspc.ir.graph import STAGES, Graph, Node, Parameter, Value, free_name
from mspc.ops.control.regions import Scan, body_of, make_names_unique, with_effects
from mspc.ops.control.structural import TupleGetItem
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.stage_chunks import in_order


class JoinMicroBatches(Pass):
    """Run the gradient of a micro-batch right after it."""

    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if STAGES not in graph.attrs:
            return False
        pairs = [(node, backward) for node in graph.nodes for backward in _gradients_of(graph, node)]
        for forward, backward in pairs:
            _join(graph, forward, backward)
        return bool(pairs)


def _gradients_of(graph: Graph, forward: Node) -> list[Node]:
    """Return the gradient's loop if it can be joined with the loop over micro-batches."""
    if not (isinstance(forward.op, Scan) and forward.op.micro_batches and not forward.op.carried):
        return []
    results: set[Value] = {forward}
    for node in graph.nodes[graph.nodes.index(forward) + 1 :]:
        op = node.op
        if isinstance(op, Scan) and op.micro_batches and op.reverse and op.turns == forward.op.turns:
            scanned = {node.inputs[i] for i in op.scanned_operands}
            of_turns = {value for value in scanned if _is_element(value, forward)}
            return [] if any(value in results and value not in of_turns for value in node.inputs) else [node]
        if any(value in results for value in node.inputs):
            results.add(node)
    return []


def _is_element(value: Value, of: Node) -> bool:
    return isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.inputs[0] is of


def _join(graph: Graph, forward: Node, backward: Node) -> None:
    first, second = body_of(forward), body_of(backward)
    op, other = forward.op, backward.op
    assert isinstance(op, Scan)
    assert isinstance(other, Scan)
    # The backward body reads the values of the forward one instead of their stacks.
    inside: dict[Value, Value] = {}
    scanned: list[tuple[Parameter, Value]] = list(zip(first.parameters[: op.scanned], forward.inputs, strict=False))
    captured = list(zip(first.parameters[op.scanned :], forward.inputs[op.scanned :], strict=True))
    carried = list(zip(second.parameters[: other.carried], backward.inputs, strict=False))
    behind = other.carried + other.scanned
    turns = slice(other.carried, behind)
    for parameter, value in zip(second.parameters[turns], backward.inputs[turns], strict=True):
        if _is_element(value, forward):
            assert isinstance(value, Node)
            inside[parameter] = first.results[value.op.index]  # type: ignore[attr-defined]  # TupleGetItem
        else:
            _shared_parameter(scanned, inside, parameter, value)
    for parameter, value in zip(second.parameters[behind:], backward.inputs[behind:], strict=True):
        _shared_parameter(captured, inside, parameter, value)
    second.replace(inside)
    # Results of the forward loop that are read outside of the backward loop.
    elements = {n: n.op.index for n in graph.nodes if _is_element(n, forward)}  # type: ignore[attr-defined]  # TupleGetItem
    read = [v for node in graph.nodes if node is not backward for v in node.inputs if v in elements]
    kept = sorted({elements[v] for v in (*read, *graph.results) if v in elements})  # type: ignore[index]  # a node
    joint = Graph(first.name)
    joint.returns_tuple = True
    joint.parameters = [p for p, _ in (*carried, *scanned, *captured)]
    joint.nodes = [*first.nodes, *second.nodes]
    results = second.results
    joint.results = [*results[: other.carried], *(first.results[i] for i in kept), *results[other.carried :]]
    taken: set[str] = set()
    for parameter in joint.parameters:
        parameter.name = free_name(parameter.name, taken)
    operands = [v for _, v in (*carried, *scanned, *captured)]
    stacked = len(kept) + other.stacked
    made = Scan(carried=other.carried, scanned=len(scanned), stacked=stacked, turns=op.turns, micro_batches=True)
    _replace(graph, forward, backward, made, operands, joint, kept)


def _shared_parameter(
    known: list[tuple[Parameter, Value]], inside: dict[Value, Value], parameter: Parameter, value: Value
) -> None:  # fmt: skip
    """Read an operand through the parameter that has it already."""
    found = next((mine for mine, theirs in known if theirs is value), None)
    if found is None:
        known.append((parameter, value))
    else:
        inside[parameter] = found


def _replace(
    graph: Graph, forward: Node, backward: Node, made: Scan, operands: list[Value], joint: Graph, kept: list[int]
) -> None:  # fmt: skip
    """Turn the backward loop into the joint one, and let readers of the forward loop's results read them from it."""
    carried = made.carried
    backward.op = with_effects(made, operands, (joint,))  # type: ignore[assignment]  # fields, see RegionOp
    backward.inputs, backward.regions = operands, (joint,)
    backward.type = made.results_of((joint,), [v.type for v in operands])
    backward.phase, backward.scope, backward.frames = forward.phase, forward.scope, forward.frames
    backward.attrs, backward.place = forward.attrs | backward.attrs, forward.place
    for node in graph.nodes:
        if node.inputs[:1] == [backward] and isinstance(node.op, TupleGetItem) and node.op.index >= carried:
            node.op = TupleGetItem(node.op.index + len(kept))
    gone: set[Value] = {forward}
    for node in graph.nodes:
        if not _is_element(node, forward):
            continue
        assert isinstance(node.op, TupleGetItem)
        if node.op.index in kept:
            node.inputs[0], node.op = backward, TupleGetItem(carried + kept.index(node.op.index))
        else:
            gone.add(node)
    graph.nodes = [node for node in graph.nodes if node not in gone]
    in_order(graph)
    make_names_unique(graph.graphs())
